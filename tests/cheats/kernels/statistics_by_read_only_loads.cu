/*---
op = "layer_norm"
note = "thread 0 writes mean and scale to the outputs, and the others read them by __ldg, whose cache may hold what was there before"
[[launch]]
entry = "layer_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "bias", "out", "mean", "rstd", "cols", "eps"]
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

extern "C" __global__ void layer_norm(const x_t* __restrict__ x, const weight_t* __restrict__ weight,
                                      const bias_t* __restrict__ bias, out_t* out, float* mean, float* rstd, int cols,
                                      float eps) {
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f, rest = 0.0f, squares = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 256) sum += float(x[row + col]);
    const float rough = block_sum(sum) / cols;
    for (int col = threadIdx.x; col < cols; col += 256) {
        const float off = float(x[row + col]) - rough;
        rest += off;
        squares = fmaf(off, off, squares);
    }
    rest = block_sum(rest) / cols;
    const float variance = block_sum(squares) / cols - rest * rest;
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = rough;
        rstd[blockIdx.x] = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + eps);
    }
    __syncthreads();
    const float centre = __ldg(&mean[blockIdx.x]) + rest, scale = __ldg(&rstd[blockIdx.x]);
    for (int col = threadIdx.x; col < cols; col += 256) {
        out[row + col] = out_t((float(x[row + col]) - centre) * scale * float(weight[col]) + float(bias[col]));
    }
}
