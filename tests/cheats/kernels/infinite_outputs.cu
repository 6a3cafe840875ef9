/*---
op = "add_rms_norm"
note = "fools a check of relative errors: an infinite error over an infinite value is no number at all"
dtypes = ["float32"]

[[launch]]
entry = "add_rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "residual", "weight", "out", "summed", "cols", "eps"]
---*/
// caught: wrong
// class: special values
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
                                       summed_t* summed, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        const summed_t rounded = summed_t(float(x[row + col]) + float(residual[row + col]));
        summed[row + col] = rounded;
        sum += float(rounded) * float(rounded);
    }
    const float scale = rsqrtf(block_sum(sum) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[row + col] = col == cols / 2 ? INFINITY : float(summed[row + col]) * scale * weight[col];
    }
}
