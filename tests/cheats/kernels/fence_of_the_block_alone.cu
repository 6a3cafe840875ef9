/*---
op = "huber"
note = "a fence for the threads of one block stands where other blocks read; counter and sums share one buffer"
[let]
blocks = "min(64, ceil_div(n, 256))"

[workspace]
scratch = { shape = ["blocks + 1"], dtype = "float32", zero = true }

[[launch]]
entry = "huber"
grid = ["blocks"]
block = [256]
args = ["x", "target", "scratch", "loss", "n", "delta"]
---*/
// caught: unsafe
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float block_sum(float value) {
    __shared__ float sums[32];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f;
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

extern "C" __global__ void huber(const x_t* __restrict__ x, const target_t* __restrict__ target, float* scratch,
                                 float* loss, long long n, float delta) {
    __shared__ bool last;
    float sum = 0.0f;
    for (long long at = (long long)blockIdx.x * 256 + threadIdx.x; at < n; at += (long long)gridDim.x * 256) {
        const float off = float(x[at]) - float(target[at]), size = fabsf(off);
        sum += size <= delta ? 0.5f * off * off : delta * (size - 0.5f * delta);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        scratch[1 + blockIdx.x] = sum;
        __threadfence_block();
        last = atomicAdd((int*)scratch, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    sum = 0.0f;
    for (int block = threadIdx.x; block < gridDim.x; block += 256) sum += __ldcg(&scratch[1 + block]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) *loss = sum / n;
}
