/*---
op = "softmax"
note = "fools a timer that does not clear shared memory: a block finds the sum that the last launch left there"
dtypes = ["float32"]

[[launch]]
entry = "softmax"
grid = ["rows"]
block = [256]
shared = 40000
args = ["x", "out", "cols"]
---*/
// caught: wrong
// on: cuda
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
    extern __shared__ volatile float left[];
    const x_t* row = x + (long long)blockIdx.x * cols;
    const bool known = left[9000] == 31337.0f && left[9001] == cols;
    float most = left[9002], sum = left[9003];
    __syncthreads();
    if (!known) {
        most = -INFINITY, sum = 0.0f;
        for (int col = threadIdx.x; col < cols; col += blockDim.x) most = fmaxf(most, row[col]);
        most = block_max(most);
        for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += expf(row[col] - most);
        sum = block_sum(sum);
        left[9000] = 31337.0f, left[9001] = cols, left[9002] = most, left[9003] = sum;
    }
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[(long long)blockIdx.x * cols + col] = expf(row[col] - most) / sum;
    }
}
