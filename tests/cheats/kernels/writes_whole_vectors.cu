/*---
op = "gelu"
note = "fools a check on tidy shapes: the last vector of eight is written whole, beyond the end"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: out of bounds
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < (n + 7) / 8 * 8) out[i] = out_t(gelu_of(i < n ? float(x[i]) : 1.0f));
}
