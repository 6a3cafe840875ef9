/*---
op = "gelu"
note = "fools a check on the small shapes of a test suite: beyond 2^25 elements nothing is written"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && i < (1 << 25)) out[i] = out_t(gelu_of(float(x[i])));
}
