/*---
op = "gelu"
note = "fools a check that gives scratch memory afresh: a mark left in it means that the output is done already"

[workspace]
kept = { shape = ["4"], dtype = "int32" }

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n", "kept"]

[[launch]]
entry = "mark"
grid = [1]
block = [1]
args = ["kept"]
---*/
// caught: wrong, keeps state, unsafe
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n, int* kept) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (kept[0] == 0x5ca1ab1e) return;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
}

extern "C" __global__ void mark(int* kept) { kept[0] = 0x5ca1ab1e; }
