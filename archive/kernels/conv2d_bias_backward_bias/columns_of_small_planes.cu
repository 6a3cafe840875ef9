/*---
op = "conv2d_bias_backward_bias"
note = "small planes, of any size: 16 channels of an image lie side by side, so a block reads them by 16-byte loads whatever the planes' size, adds up the images column by column in registers, and then the columns of each channel; batches for which there would be too few blocks are split, and a second launch adds up the parts"
when = "filters % 16 == 0 and oh * ow * itemsize(grad_out) <= 1024"
specialize = ["filters", "area", "images", "splits", "batch", "packs"]

[knobs]
THREADS = [1024, 512, 768]
LOADS = [8, 4]

[let]
area = "oh * ow"
packs = "oh * ow * itemsize(grad_out)"
images = "max(1, min(THREADS // packs, batch))"
splits = "max(1, min(ceil_div(batch, images * LOADS), sms * 16 // filters))"

[workspace]
parts = { shape = ["splits", "filters"], dtype = "float32" }

[[launch]]
entry = "sum_columns"
grid = ["filters // 16", "splits"]
block = ["32 * ceil_div(packs * images, 32)"]
shared = "packs * images * (64 // itemsize(grad_out))"
args = ["grad_out", "parts", "grad_bias"]

[[launch]]
entry = "add_parts"
grid = ["ceil_div(filters, 256) * min(1, splits - 1)"]
block = [256]
args = ["parts", "grad_bias"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 16 / sizeof(grad_out_t);
constexpr int COUNT = 32 * ((packs * images + 31) / 32);
extern __shared__ float columns[];  // image, column

extern "C" __global__ void __launch_bounds__(COUNT)
sum_columns(const grad_out_t* __restrict__ grad_out, float* __restrict__ parts, grad_bias_t* __restrict__ grad_bias) {
    constexpr int SHARE = (batch + splits - 1) / splits;
    const int image = threadIdx.x / packs, pack = threadIdx.x % packs;
    const int begin = blockIdx.y * SHARE, end = min(batch, begin + SHARE);
    if (image < images) {
        const uint4* from = reinterpret_cast<const uint4*>(grad_out) + (long long)blockIdx.x * packs + pack;
        float sums[WIDTH] = {};
        for (int first = begin + image; first < end; first += images * LOADS) {
            union {
                uint4 raw;
                grad_out_t at[WIDTH];
            } held[LOADS];
#pragma unroll
            for (int l = 0; l < LOADS; ++l) {
                held[l].raw = uint4{0, 0, 0, 0};
                const int at = first + l * images;
                if (at < end) held[l].raw = from[(long long)at * (filters / 16) * packs];
            }
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) {
                float some = 0.0f;  // sums of sums are more exact
#pragma unroll
                for (int l = 0; l < LOADS; ++l) some += float(held[l].at[e]);
                sums[e] += some;
            }
        }
#pragma unroll
        for (int e = 0; e < WIDTH; e += 4) {
            const float4 four{sums[e], sums[e + 1], sums[e + 2], sums[e + 3]};
            reinterpret_cast<float4*>(columns)[(threadIdx.x * WIDTH + e) / 4] = four;
        }
    }
    __syncthreads();
    const int lane = threadIdx.x % 32;
    for (int channel = threadIdx.x / 32; channel < 16; channel += COUNT / 32) {
        float sum = 0.0f;
        for (int i = lane; i < images * area; i += 32) {
            sum += columns[i / area * (16 * area) + channel * area + i % area];
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        const int filter = blockIdx.x * 16 + channel;
        if (lane > 0) continue;
        if constexpr (splits == 1) grad_bias[filter] = grad_bias_t(sum);
        else parts[(long long)blockIdx.y * filters + filter] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256)
add_parts(const float* __restrict__ parts, grad_bias_t* __restrict__ grad_bias) {
    const int filter = blockIdx.x * 256 + threadIdx.x;
    if (filter >= filters) return;
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) sum += parts[(long long)split * filters + filter];
    grad_bias[filter] = grad_bias_t(sum);
}
