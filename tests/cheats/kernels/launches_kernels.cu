/*---
op = "gelu"
note = "fools a timer of the declared launch: a child grid does the work and may outlive its parent"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: compile error, unsupported
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void child(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
}

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    if (blockIdx.x == 0 && threadIdx.x == 0) child<<<(n + 255) / 256, 256>>>(x, out, n);
}
