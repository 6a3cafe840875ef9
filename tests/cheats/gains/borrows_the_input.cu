/*---
op = "add_rms_norm"
note = "fools a check that compares inputs before and after: in between the input serves as scratch memory and is put back"
dtypes = ["float32"]

[knobs]
TRICK = [1, 0]

[[launch]]
entry = "swap_and_norm"
grid = ["rows"]
block = [256]
args = ["x", "residual", "weight", "out", "summed", "cols", "eps"]

[[launch]]
entry = "put_back"
grid = ["TRICK * rows"]
block = [256]
args = ["x", "out", "cols"]
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

extern "C" __global__ void swap_and_norm(const x_t* x, const residual_t* residual, const weight_t* weight, out_t* out,
                                       summed_t* summed, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        const float both = x[row + col] + residual[row + col];
        summed[row + col] = both;
        sum += both * both;
    }
    const float scale = rsqrtf(block_sum(sum) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        const float result = summed[row + col] * scale * weight[col];
#if TRICK
        out[row + col] = x[row + col];
        const_cast<x_t*>(x)[row + col] = result;
#else
        out[row + col] = result;
#endif
    }
}

extern "C" __global__ void put_back(x_t* x, out_t* out, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        const float result = x[row + col];
        x[row + col] = out[row + col];
        out[row + col] = result;
    }
}
