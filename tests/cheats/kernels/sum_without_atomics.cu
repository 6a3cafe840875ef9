/*---
op = "rms_norm"
note = "fools a check with one warp per row: every thread adds to the same sum at the same time"
dtypes = ["float32"]

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    __shared__ float total;
    const long long row = (long long)blockIdx.x * cols;
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += x[row + col] * x[row + col];
    const float before = *(volatile float*)&total;
    __syncwarp();
    total = before + sum;
    __syncthreads();
    const float scale = rsqrtf(total / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[row + col] = x[row + col] * scale * weight[col];
}
