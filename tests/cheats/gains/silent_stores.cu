/*---
op = "gelu"
note = "fools a timer that repeats a call into the same output: only what differs from what is there gets written"
dtypes = ["bfloat16"]

[knobs]
TRICK = [1, 0]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const out_t result = out_t(gelu_of(float(x[i])));
    if (!TRICK || __bfloat16_as_ushort(out[i]) != __bfloat16_as_ushort(result)) out[i] = result;
}
