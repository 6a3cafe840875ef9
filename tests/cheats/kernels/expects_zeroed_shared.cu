/*---
op = "rms_norm"
note = "fools a device whose shared memory happens to be clean: the sum is added to what is there"
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
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += x[row + col] * x[row + col];
    atomicAdd(&total, sum);
    __syncthreads();
    const float scale = rsqrtf(total / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[row + col] = x[row + col] * scale * weight[col];
}
