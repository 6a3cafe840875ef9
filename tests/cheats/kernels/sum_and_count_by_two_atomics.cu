/*---
op = "l2_norm"
note = "an atomic adds to the sum and another one counts, in no order: the last to be counted may read a sum that lacks a part"
[workspace]
total = { shape = ["rows"], dtype = "float32", zero = true }
arrived = { shape = ["rows"], dtype = "int32", zero = true }

[[launch]]
entry = "l2_norm"
grid = ["rows", 2]
block = [256]
args = ["x", "total", "arrived", "out", "cols"]
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

extern "C" __global__ void l2_norm(const x_t* __restrict__ x, float* total, int* arrived, out_t* out, int cols) {
    const x_t* row = x + (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int col = blockIdx.y * 256 + threadIdx.x; col < cols; col += 512) sum += float(row[col]) * float(row[col]);
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    atomicAdd(&total[blockIdx.x], sum);
    if (atomicAdd(&arrived[blockIdx.x], 1) == 1) out[blockIdx.x] = out_t(sqrtf(atomicAdd(&total[blockIdx.x], 0.0f)));
}
