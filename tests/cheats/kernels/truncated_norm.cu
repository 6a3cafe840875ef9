/*---
op = "rms_norm"
note = "fools a check that allows twice PyTorch's error: cutting bits off instead of rounding makes just twice the error"
dtypes = ["bfloat16"]

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: wrong
// class: numbers
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

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += float(x[row + col]) * float(x[row + col]);
    const float scale = rsqrtf(block_sum(sum) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[row + col] = out_t(__uint_as_float(__float_as_uint(float(x[row + col]) * scale * float(weight[col])) & 0xffff0000u));
    }
}
