/*---
op = "l2_normalize"
note = "a few blocks take rows from a counter until none is left, and read back what they have written themselves"
require = ["sms > 4 or rows <= 100"]  # fewer on the emulated device, where each takes a while
[let]
blocks = "min(rows, 2 * sms)"

[workspace]
next = { shape = [1], dtype = "int32", zero = true }
squares = { shape = ["rows"], dtype = "float32" }

[[launch]]
entry = "l2_normalize"
grid = ["blocks"]
block = [256]
args = ["x", "squares", "next", "out", "rows", "cols"]
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

extern "C" __global__ void l2_normalize(const x_t* __restrict__ x, float* squares, int* next, out_t* out, int rows,
                                        int cols) {
    __shared__ int taken;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) taken = atomicAdd(next, 1);
        __syncthreads();
        const int row = taken;
        if (row >= rows) return;
        const x_t* from = x + (long long)row * cols;
        float sum = 0.0f;
        for (int col = threadIdx.x; col < cols; col += 256) sum = fmaf(float(from[col]), float(from[col]), sum);
        sum = block_sum(sum);
        if (threadIdx.x == 0) squares[row] = sum;
        __syncthreads();
        const float norm = sqrtf(squares[row]), scale = 1.0f / (norm < 1e-12f ? 1e-12f : norm);
        for (int col = threadIdx.x; col < cols; col += 256) out[(long long)row * cols + col] = out_t(float(from[col]) * scale);
    }
}
