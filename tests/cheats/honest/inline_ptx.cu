/*---
op = "softmax"
note = "loads, the exponential and its scaling by inline PTX"
dtypes = ["float32"]

[[launch]]
entry = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "cols"]
---*/
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

__device__ float load(const float* address) {
    float value;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(address));
    return value;
}

__device__ float exp_of(float x) {
    const float power = x * 1.4426950408889634f;
    const float whole = rintf(fmaxf(power, -200.0f));
    float rest, result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(rest) : "f"(fmaf(x, 1.925963033e-8f, fmaf(x, 1.4426950216f, -whole))));
    asm("{ .reg .f32 t; ex2.approx.ftz.f32 t, %2; mul.rn.f32 %0, %1, t; }" : "=f"(result) : "f"(rest), "f"(whole));
    return x < -150.0f ? 0.0f : result;
}

extern "C" __global__ void softmax(const x_t* x, out_t* out, int cols) {
    const x_t* row = x + (long long)blockIdx.x * cols;
    float most = -3.402823466e+38f, sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) most = fmaxf(most, load(row + col));
    most = block_max(most);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += exp_of(load(row + col) - most);
    sum = block_sum(sum);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[(long long)blockIdx.x * cols + col] = (exp_of(load(row + col) - most) / sum);
    }
}
