/*---
op = "gelu"
note = "fools a reader of const: the plan itself gives the input where the kernel writes"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n", "x"]
---*/
// caught: changed input
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n, x_t* also) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float result = gelu_of(float(x[i]));
    out[i] = out_t(result), also[i] = x_t(result);
}
