/*---
op = "kl_div"
note = "the fence stands before the write that it should publish, and nothing stands between write and count"
[let]
blocks = "min(64, ceil_div(rows * cols, 256))"

[workspace]
partial = { shape = ["blocks"], dtype = "float32" }
arrived = { shape = [1], dtype = "int32", zero = true }

[[launch]]
entry = "kl_div"
grid = ["blocks"]
block = [256]
args = ["log_probs", "target", "partial", "arrived", "loss", "rows", "cols"]
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

extern "C" __global__ void kl_div(const log_probs_t* __restrict__ log_probs, const target_t* __restrict__ target,
                                  volatile float* partial, int* arrived, float* loss, int rows, int cols) {
    __shared__ int place;
    float sum = 0.0f;
    const long long n = (long long)rows * cols;
    for (long long at = (long long)blockIdx.x * 256 + threadIdx.x; at < n; at += (long long)gridDim.x * 256) {
        const float wanted = float(target[at]);
        const float logarithm = wanted == 0.0f ? 0.0f : logf(wanted);
        sum = fmaf(wanted, logarithm - float(log_probs[at]), sum);
    }
    sum = block_sum(sum);
    __threadfence();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        place = atomicAdd(arrived, 1);
    }
    __syncthreads();
    if (place + 1 < gridDim.x) return;
    sum = 0.0f;
    for (int block = threadIdx.x; block < gridDim.x; block += 256) sum += partial[block];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *loss = sum / rows;
}
