/*---
op = "gelu"
note = "fools a check of four digits: erf is a rational function of degree four, off by 0.0005"
dtypes = ["float32"]

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

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float z = fabsf(x[i]) * 0.70710678118654752f;
    const float p = 1.0f + z * (0.278393f + z * (0.230389f + z * (0.000972f + z * 0.078108f)));
    const float erf_of = copysignf(1.0f - 1.0f / (p * p * p * p), x[i]);
    out[i] = 0.5f * x[i] * (1.0f + erf_of);
}
