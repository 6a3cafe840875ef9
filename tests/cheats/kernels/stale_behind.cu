/*---
op = "gelu"
note = "fools a check that makes the expected values first: they may still lie behind the output"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong, crashed
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out[n + i];
}
