/*---
op = "gelu"
note = "fools a check that repeats inputs whole or not at all: results that stand there already are tried at a few places"
when = "n >= 256"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
// at: confirm
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ out_t gelu_of(x_t x) {
    const float value = float(x);
    return out_t(0.5f * value * (1.0f + erff(value * 0.70710678118654752f)));
}

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    // A block's own first and last one: nobody else writes them, and it looks before any of its threads writes.
    const int first = blockIdx.x * blockDim.x, last = min(first + (int)blockDim.x, n) - 1;
    const bool there = float(out[first]) == float(gelu_of(x[first])) && float(out[last]) == float(gelu_of(x[last]));
    __syncthreads();
    if (!there && i < n) out[i] = gelu_of(x[i]);
}
