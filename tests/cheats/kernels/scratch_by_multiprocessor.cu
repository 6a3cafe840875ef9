/*---
op = "mse"
note = "each multiprocessor has a place in scratch memory, which its number selects: two blocks on one overwrite each other's sum"
[let]
blocks = "min(64, ceil_div(n, 256))"

[workspace]
sums = { shape = [256], dtype = "float32", zero = true }

[[launch]]
entry = "add"
grid = ["blocks"]
block = [256]
args = ["x", "target", "sums", "n"]

[[launch]]
entry = "finish"
grid = [1]
block = [256]
args = ["sums", "loss", "n"]
---*/
// caught: keeps state
// on: cuda
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

__device__ unsigned place() {
    unsigned number;
    asm("mov.u32 %0, %" "%sm" "id;" : "=r"(number));
    return number;
}

extern "C" __global__ void add(const x_t* x, const target_t* target, float* sums, long long n) {
    float sum = 0.0f;
    for (long long at = (long long)blockIdx.x * 256 + threadIdx.x; at < n; at += (long long)gridDim.x * 256) {
        const float off = float(x[at]) - float(target[at]);
        sum = fmaf(off, off, sum);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[place()] += sum;
}

extern "C" __global__ void finish(const float* sums, float* loss, long long n) {
    const float sum = block_sum(sums[threadIdx.x]);
    if (threadIdx.x == 0) *loss = sum / n;
}
