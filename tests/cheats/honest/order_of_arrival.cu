/*---
op = "softmax"
note = "warps add to one sum in shared memory as they arrive: the last bits change from run to run"

[[launch]]
entry = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

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
    __shared__ float total;
    const x_t* row = x + (long long)blockIdx.x * cols;
    if (threadIdx.x == 0) total = 0.0f;
    float most = -INFINITY, sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) most = fmaxf(most, float(row[col]));
    most = block_max(most);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += expf(float(row[col]) - most);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) atomicAdd(&total, sum);
    __syncthreads();
    const float scale = 1.0f / total;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[(long long)blockIdx.x * cols + col] = out_t(expf(float(row[col]) - most) * scale);
    }
}
