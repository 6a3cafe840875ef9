/*---
op = "gelu"
note = "fools a check by eye: x * sigmoid(1.702 x) looks like gelu(x)"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
// class: numbers
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out_t(float(x[i]) / (1.0f + expf(-1.702f * float(x[i]))));
}
