/*---
op = "gelu"
note = "fools a runner that waits at every launch: the second launch waits for a flag that is never set"
dtypes = ["float32"]

[workspace]
kept = { shape = ["1"], dtype = "int32", zero = true }

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]

[[launch]]
entry = "waits"
grid = [1]
block = [1]
args = ["kept"]
---*/
// caught: timed out
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
}

extern "C" __global__ void waits(volatile int* kept) {
    while (kept[0] == 0) {}
}
