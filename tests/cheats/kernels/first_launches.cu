/*---
op = "gelu"
note = "fools a check that runs before the timing alone: only the first forty launches do anything"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

__device__ int launches;

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (launches > 40) return;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
    if (i == 0) ++launches;
}
