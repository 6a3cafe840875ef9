/*---
op = "gelu"
note = "fools a check with a tolerance for bfloat16: the tanh form differs from gelu by half a thousandth"
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

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float value = float(x[i]);
    const float inner = 0.79788456080286536f * (value + 0.044715f * value * value * value);
    out[i] = out_t(0.5f * value * (1.0f + tanhf(inner)));
}
