/*---
op = "kl_div"
note = "16-byte loads of both inputs, several on their way at once in each thread; a second launch adds up the blocks' sums; any size"

[knobs]
THREADS = [512, 128, 256]
BLOCKS = [2112, 528, 1056, 4224]
UNROLL = [1, 2, 4]

[let]
width = "16 // itemsize(target)"
blocks = "min(ceil_div(rows * cols, THREADS * UNROLL * width), BLOCKS)"

[workspace]
partial = { shape = ["blocks"], dtype = "float32" }

[[launch]]
entry = "kl_div_partial"
grid = ["blocks"]
block = ["THREADS"]
args = ["log_probs", "target", "partial", "rows * cols"]

[[launch]]
entry = "kl_div_total"
grid = [1]
block = ["THREADS"]
args = ["partial", "loss", "blocks", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 16 / sizeof(target_t);

struct alignas(16) Pack {
    target_t values[WIDTH];
};

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// The sum over a block, in every thread; once per kernel, for the shared memory is used but once.
__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float sums[32];
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    return sum_of_warp(threadIdx.x % 32 < THREADS / 32 ? sums[threadIdx.x % 32] : 0.0f);
}

__device__ __forceinline__ float with_term(float sum, float log_prob, float wanted) {
    const float logarithm = wanted == 0.0f ? 0.0f : logf(wanted);
    return fmaf(wanted, logarithm - log_prob, sum);  // 0 times an infinity is NaN, as in the reference
}

extern "C" __global__ void __launch_bounds__(THREADS)
kl_div_partial(const log_probs_t* __restrict__ log_probs, const target_t* __restrict__ target,
               float* __restrict__ partial, long long n) {
    const Pack* said = reinterpret_cast<const Pack*>(log_probs);
    const Pack* wanted = reinterpret_cast<const Pack*>(target);
    const long long packs = n / WIDTH;
    float sum = 0.0f;
    for (long long tile = (long long)blockIdx.x * THREADS * UNROLL; tile < packs;
         tile += (long long)gridDim.x * THREADS * UNROLL) {
        Pack p[UNROLL], q[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const long long at = tile + i * THREADS + threadIdx.x;
            if (at < packs) {
                p[i] = wanted[at];
                q[i] = said[at];
            } else {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) p[i].values[j] = q[i].values[j] = target_t(0.0f);
            }
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) sum = with_term(sum, float(q[i].values[j]), float(p[i].values[j]));
        }
    }
    const long long rest = packs * WIDTH + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) sum = with_term(sum, float(log_probs[rest]), float(target[rest]));
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
kl_div_total(const float* __restrict__ partial, float* __restrict__ loss, int blocks, int rows) {
    float sum = 0.0f;
    for (int at = threadIdx.x; at < blocks; at += THREADS) sum += partial[at];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) *loss = sum / rows;
}
