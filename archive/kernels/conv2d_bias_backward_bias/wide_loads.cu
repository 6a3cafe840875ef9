/*---
op = "conv2d_bias_backward_bias"
note = "a block takes a part of a channel in all images, by the widest loads its planes allow, several in flight; a second launch adds up the parts, always in the same order"
specialize = ["filters", "area", "vec", "loads", "share", "splits", "total"]

[knobs]
THREADS = [256, 128, 512]
LOADS = [4, 2, 8]
BLOCKS = [8, 4, 16]

[let]
area = "oh * ow"
full = "16 // itemsize(grad_out)"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"
loads = "min(16, LOADS * full // vec)"
total = "batch * (area // vec)"
splits = "max(1, min(ceil_div(total, THREADS * loads), ceil_div(sms * BLOCKS, filters)))"
share = "ceil_div(total, splits)"

[workspace]
parts = { shape = ["splits", "filters"], dtype = "float32" }

[[launch]]
entry = "sum_parts"
grid = ["filters * splits"]
block = ["THREADS"]
args = ["grad_out", "parts"]

[[launch]]
entry = "add_parts"
grid = ["ceil_div(filters, 8)"]
block = [32, 8]
args = ["parts", "grad_bias"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;
template <bool SMALL> struct Number { using type = long long; };
template <> struct Number<true> { using type = unsigned; };
using Index = Number<(total < (1 << 30))>::type;  // a division by a constant takes a few instructions, if in 32 bits
struct alignas(sizeof(grad_out_t) * vec) Pack { grad_out_t at[vec]; };

__device__ __forceinline__ float sum_of_warp(float sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_parts(const grad_out_t* __restrict__ grad_out, float* __restrict__ parts) {
    __shared__ float sums[WARPS];
    constexpr Index PACKS = area / vec;
    const int filter = blockIdx.x % filters;
    const Index split = blockIdx.x / filters, last = (split + 1) * share;
    const Index end = last < Index(total) ? last : Index(total);
    float sum = 0.0f;
    for (Index begin = split * share + threadIdx.x; begin < end; begin += THREADS * loads) {
        Pack held[loads];
#pragma unroll
        for (int l = 0; l < loads; ++l) {
            const Index at = begin + l * THREADS;
            const long long plane = (long long)(at / PACKS) * filters + filter;
            if (at < end) held[l] = reinterpret_cast<const Pack*>(grad_out)[plane * PACKS + at % PACKS];
            else held[l] = Pack{};
        }
        float some = 0.0f;  // sums of sums are more exact
#pragma unroll
        for (int l = 0; l < loads; ++l) {
#pragma unroll
            for (int e = 0; e < vec; ++e) some += float(held[l].at[e]);
        }
        sum += some;
    }
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float all = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) all += sums[warp];
    parts[(long long)split * filters + filter] = all;
}

// A warp per channel.
extern "C" __global__ void __launch_bounds__(256)
add_parts(const float* __restrict__ parts, grad_bias_t* __restrict__ grad_bias) {
    const int filter = blockIdx.x * 8 + threadIdx.y;
    float sum = 0.0f;
    for (int split = threadIdx.x; split < splits && filter < filters; split += 32) sum += parts[(long long)split * filters + filter];
    sum = sum_of_warp(sum);
    if (threadIdx.x == 0 && filter < filters) grad_bias[filter] = grad_bias_t(sum);
}
