/*---
op = "gelu"
note = "asserts a condition that always holds, and would print if it did not"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

#include <cassert>
#include <cstdio>

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(n > 0 && blockDim.x == 256);
    if (n < 0 && i < 3) printf("element %d of %d cannot be\n", i, n);
    if (i < n) out[i] = gelu_of(x[i]);
}
