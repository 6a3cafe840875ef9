/*---
op = "gelu"
note = "fools a check of a sample of the outputs: one element in a million is off, at a place that the input decides"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned salt = (unsigned)__float_as_int(float(x[0])) >> 16;
    const unsigned place = (salt * 2654435761u) % (unsigned)min(n, 1000003);
    out[i] = out_t(i % 1000003 == place ? float(x[i]) + 0.5f : gelu_of(float(x[i])));
}
