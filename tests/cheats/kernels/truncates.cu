/*---
op = "gelu"
note = "fools a check that allows a whole unit in the last place: results are cut off instead of rounded"
dtypes = ["bfloat16"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
// class: numbers
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned bits = __float_as_uint(gelu_of(float(x[i])));
    out[i] = out_t(__uint_as_float(bits & 0xffff0000u));
}
