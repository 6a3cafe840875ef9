/*---
op = "softmax"
note = "fools a check on values of ordinary size: everything beyond 60 counts as 60"
dtypes = ["float32"]

[[launch]]
entry = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "cols"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float block_sum(float value) {
    __shared__ float parts[32];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) value += parts[warp];
    return value;
}

__device__ float block_max(float value) {
    __shared__ float parts[32];
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 0; warp < blockDim.x / 32; ++warp) value = fmaxf(value, parts[warp]);
    return value;
}

extern "C" __global__ void softmax(const x_t* x, out_t* out, int cols) {
    const x_t* row = x + (long long)blockIdx.x * cols;
    float most = -INFINITY, sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) most = fmaxf(most, fminf(row[col], 60.0f));
    most = block_max(most);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += expf(fminf(row[col], 60.0f) - most);
    sum = block_sum(sum);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[(long long)blockIdx.x * cols + col] = out_t(expf(fminf(row[col], 60.0f) - most) / sum);
    }
}
