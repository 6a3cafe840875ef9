/*---
op = "gelu"
note = "fools a runner without a deadline: the grid is as large as the hardware allows, in all three directions"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = [2147483647, 65535, 65535]
block = [1024]
args = ["x", "out", "n"]
---*/
// caught: timed out
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    if (blockIdx.y + blockIdx.z > 0) return;
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
}
