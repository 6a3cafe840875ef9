/*---
op = "gelu"
note = "fools a search for device variables: this one is managed: it lives on both sides"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state, compile error, unsupported
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

__managed__ int launches = 0;

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (launches > 40) return;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
    if (i == 0) ++launches;
}
