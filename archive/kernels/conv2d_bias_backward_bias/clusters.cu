/*---
op = "conv2d_bias_backward_bias"
note = "one launch: a cluster of blocks per channel, each of which takes a part of the channel in all images, by the widest loads its planes allow, many in flight; the first block adds up what the others hold in shared memory"
specialize = ["filters", "area", "vec", "loads", "share", "total"]

[knobs]
SIZE = [8, 2, 4]
THREADS = [256, 128, 512]
LOADS = [8, 4]

[let]
area = "oh * ow"
full = "16 // itemsize(grad_out)"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"
loads = "min(16, LOADS * full // vec)"
total = "batch * (area // vec)"
share = "ceil_div(total, SIZE)"

[[launch]]
entry = "sum_channel"
grid = ["filters * SIZE"]
block = ["THREADS"]
args = ["grad_out", "grad_bias"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;
template <int BYTES> struct Raw;
template <> struct Raw<2> { using type = unsigned short; };
template <> struct Raw<4> { using type = unsigned; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<16> { using type = uint4; };
using Word = Raw<sizeof(grad_out_t) * vec>::type;
template <bool SMALL> struct Number { using type = long long; };
template <> struct Number<true> { using type = unsigned; };
using Index = Number<(total < (1 << 30))>::type;  // a division by a constant takes a few instructions, if in 32 bits

__device__ __forceinline__ float sum_of_warp(float sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ __forceinline__ float of_block(const float* mine, int rank) {
    unsigned there;
    float value;
    const unsigned here = (unsigned)__cvta_generic_to_shared(mine);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
    return value;
}

__device__ __forceinline__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(SIZE, 1, 1) __launch_bounds__(THREADS)
sum_channel(const grad_out_t* __restrict__ grad_out, grad_bias_t* __restrict__ grad_bias) {
    __shared__ float sums[WARPS];
    __shared__ float part;
    constexpr Index PACKS = area / vec;
    const int filter = blockIdx.x / SIZE, rank = blockIdx.x % SIZE;
    const Word* from = reinterpret_cast<const Word*>(grad_out);
    const Index first = Index(share) * rank, last = first + share, end = last < Index(total) ? last : Index(total);
    float sum = 0.0f;
    for (Index begin = first + threadIdx.x; begin < end; begin += THREADS * loads) {
        union Pack {
            Word raw;
            grad_out_t at[vec];
        } held[loads];
#pragma unroll
        for (int l = 0; l < loads; ++l) {
            const Index at = begin + l * THREADS;
            held[l].raw = Word{};
            const long long plane = (long long)(at / PACKS) * filters + filter;
            if (at < end) held[l].raw = from[plane * PACKS + at % PACKS];
        }
        float some[2] = {};  // sums of sums are more exact
#pragma unroll
        for (int l = 0; l < loads; ++l) {
#pragma unroll
            for (int e = 0; e < vec; ++e) some[e % 2] += float(held[l].at[e]);
        }
        sum += some[0] + some[1];
    }
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) all += sums[warp];
        part = all;
    }
    meet();
    if (rank == 0 && threadIdx.x < 32) {
        const float all = sum_of_warp(threadIdx.x < SIZE ? of_block(&part, threadIdx.x) : 0.0f);
        if (threadIdx.x == 0) grad_bias[filter] = grad_bias_t(all);
    }
    meet();  // no block may end while another reads its memory
}
