/*---
op = "mean"
note = "two blocks share a row, and the first waits for the second, which may never get a multiprocessor while others wait"
[workspace]
parts = { shape = ["rows", 2], dtype = "float32" }
arrived = { shape = ["rows"], dtype = "int32", zero = true }

[[launch]]
entry = "mean"
grid = ["2 * rows"]
block = [256]
args = ["x", "parts", "arrived", "out", "cols", "rows"]
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

extern "C" __global__ void mean(const x_t* __restrict__ x, volatile float* parts, volatile int* arrived, out_t* out,
                                int cols, int rows) {
    const int row = blockIdx.x % rows, half = blockIdx.x / rows;
    const x_t* from = x + (long long)row * cols;
    float sum = 0.0f;
    for (int col = half * 256 + threadIdx.x; col < cols; col += 512) sum += float(from[col]);
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    if (half) {
        parts[row] = sum;
        __threadfence();
        arrived[row] = 1;
    } else {
        while (arrived[row] == 0) __nanosleep(100);
        __threadfence();
        out[row] = out_t((sum + parts[row]) / cols);
    }
}
