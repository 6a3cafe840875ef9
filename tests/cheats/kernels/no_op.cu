/*---
op = "gelu"
note = "fools a check that compares with what an earlier run left in the output: nothing is written at all"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
}
