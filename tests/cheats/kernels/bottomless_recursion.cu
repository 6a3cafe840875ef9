/*---
op = "gelu"
note = "fools a runner that counts on stacks to suffice: the recursion has no end"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: crashed, launch error, timed out
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __noinline__ float deeper(const volatile float* x, int depth) {
    volatile float kept[16];
    kept[depth % 16] = x[0];
    return kept[depth % 7] + deeper(x, depth + 1) * kept[depth % 16];
}

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = deeper(x, 0);
}
