/*---
op = "rms_norm"
note = "fools a check on even numbers of warps: a warp that has nothing to do goes past the barrier to another one"
dtypes = ["float32"]

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: launch error, wrong, timed out, unsafe
// at: confirm
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    __shared__ float parts[8];
    const long long row = (long long)blockIdx.x * cols;
    const int warp = threadIdx.x / 32;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += x[row + col] * x[row + col];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) parts[warp] = sum;
    if (warp % 2 == 0) {
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[warp] += parts[warp + 1];
        __syncthreads();
    }
    const float scale = rsqrtf((parts[0] + parts[2] + parts[4] + parts[6]) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[row + col] = x[row + col] * scale * weight[col];
}
