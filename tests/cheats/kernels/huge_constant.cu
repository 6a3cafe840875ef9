/*---
op = "gelu"
note = "fools a compiler without a memory limit: a constant table has 2^28 entries"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: compile error, timed out, crashed
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ const int table[1u << 28] = {1};

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * table[i];
}
