/*---
op = "rms_norm"
note = "fools a check on one row per block: a fast thread overwrites the sums that a slow one still reads"
dtypes = ["float32"]

[[launch]]
entry = "rms_norm"
grid = ["ceil_div(rows, 8)"]
block = [64]
args = ["x", "weight", "out", "cols", "eps", "rows"]
---*/
// caught: wrong, unsafe
// at: confirm
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps, int rows) {
    __shared__ float parts[64];
    for (int row = blockIdx.x * 8; row < min(rows, (int)blockIdx.x * 8 + 8); ++row) {
        const x_t* from = x + (long long)row * cols;
        float sum = 0.0f;
        for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += from[col] * from[col];
        parts[threadIdx.x] = sum;
        __syncthreads();
        sum = 0.0f;
        for (int thread = 0; thread < 64; ++thread) sum += parts[thread];
        const float scale = rsqrtf(sum / cols + eps);
        for (int col = threadIdx.x; col < cols; col += blockDim.x) {
            out[(long long)row * cols + col] = from[col] * scale * weight[col];
        }
    }
}
