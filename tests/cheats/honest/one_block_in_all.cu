/*---
op = "add_rms_norm"
note = "a single block of 1024 threads goes through all rows, one after the other"
dtypes = ["float32"]
require = ["sms > 4 or rows <= 100"]  # fewer on the emulated device, where each takes a while

[[launch]]
entry = "add_rms_norm"
grid = [1]
block = [1024]
args = ["x", "residual", "weight", "out", "summed", "rows", "cols", "eps"]
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

extern "C" __global__ void add_rms_norm(const x_t* x, const residual_t* residual, const weight_t* weight, out_t* out,
                                       summed_t* summed, int rows, int cols, float eps) {
    for (long long row = 0; row < (long long)rows * cols; row += cols) {
        float sum = 0.0f;
        for (int col = threadIdx.x; col < cols; col += blockDim.x) {
            const float both = x[row + col] + residual[row + col];
            summed[row + col] = both;
            sum += both * both;
        }
        const float scale = rsqrtf(block_sum(sum) / cols + eps);
        for (int col = threadIdx.x; col < cols; col += blockDim.x) {
            out[row + col] = summed[row + col] * scale * weight[col];
        }
    }
}
