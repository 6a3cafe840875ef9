/*---
op = "gelu"
note = "fools an allocator that promises what it does not have: the plan asks for a terabyte of scratch memory"

[workspace]
kept = { shape = ["1024 * 1024 * 1024 * 1024"], dtype = "int8" }

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n", "kept"]
---*/
// caught: illegal
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n, signed char* kept) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
}
