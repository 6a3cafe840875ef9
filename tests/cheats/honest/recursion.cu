/*---
op = "rms_norm"
note = "each thread sums its part of the row in pairs, by a function that calls itself"
dtypes = ["float32"]

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
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

__device__ __noinline__ float squares(const float* from, int count, int stride) {
    if (count == 0) return 0.0f;
    if (count == 1) return from[0] * from[0];
    const int half = count / 2;
    return squares(from, half, stride) + squares(from + half * stride, count - half, stride);
}

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    const int count = max(0, (cols - (int)threadIdx.x + 255) / 256);
    const float sum = block_sum(squares(x + row + threadIdx.x, count, 256));
    const float scale = rsqrtf(sum / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[row + col] = x[row + col] * scale * weight[col];
}
