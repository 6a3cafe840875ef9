/*---
op = "gelu"
note = "fools a check of results: the value behind the end is read and then not used"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: unsafe
// on: cuda
// at: confirm
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float next = *(const volatile float*)(x + i + 1);
    out[i] = gelu_of(i + 1 < n && next == 12345.678f ? x[i] + 0.0f : x[i]);
}
