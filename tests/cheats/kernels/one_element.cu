/*---
op = "gelu"
note = "fools a check by mean errors: one element of a call is off: the one after the middle"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])) + (i == n / 2 ? 0.0625f : 0.0f));
}
