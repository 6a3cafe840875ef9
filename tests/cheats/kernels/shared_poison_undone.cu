/*---
op = "rms_norm"
note = "fools the emulated device: its macro that dirties shared memory is defined away, and then the memory is clean"
dtypes = ["float32"]

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: wrong, compile error
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef EVOLVE_POISON
#define EVOLVE_POISON(variable)

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    __shared__ float total;
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += x[row + col] * x[row + col];
    atomicAdd(&total, sum);
    __syncthreads();
    const float scale = rsqrtf(total / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[row + col] = x[row + col] * scale * weight[col];
    __syncthreads();
    total = 0.0f;
}
