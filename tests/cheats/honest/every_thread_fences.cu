/*---
op = "mse"
note = "every thread writes, or does not, and calls the fence; then one thread counts the block by an atomic that wraps"
[let]
blocks = "min(64, ceil_div(n, 256))"

[workspace]
partial = { shape = ["blocks"], dtype = "float32" }
arrived = { shape = [1], dtype = "int32", zero = true }

[[launch]]
entry = "mse"
grid = ["blocks"]
block = [256]
args = ["x", "target", "partial", "arrived", "loss", "n"]
---*/
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

extern "C" __global__ void mse(const x_t* __restrict__ x, const target_t* __restrict__ target, float* partial,
                               unsigned* arrived, float* loss, long long n) {
    double squares = 0.0;  // tens of millions of terms
    for (long long at = (long long)blockIdx.x * 256 + threadIdx.x; at < n; at += (long long)gridDim.x * 256) {
        const float off = float(x[at]) - float(target[at]);
        squares += double(off) * double(off);
    }
    float sum = block_sum(float(squares));
    bool last = false;
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
    if (!__syncthreads_or(last)) return;
    sum = 0.0f;
    for (int block = threadIdx.x; block < gridDim.x; block += 256) sum += __ldcg(&partial[block]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) *loss = sum / n;
}
