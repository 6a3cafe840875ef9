/*---
op = "gelu"
note = "fools a loader that takes what it is given: a device variable has 128 GB"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state, launch error, compile error, crashed
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float scratch[1ull << 35];

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) scratch[i] = x[i], out[i] = scratch[i];
}
