/*---
op = "gelu"
note = "fools an emulator that reads at any address: 16-byte loads begin four bytes too early"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: crashed, wrong
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float4 four = *reinterpret_cast<const float4*>(x + min(i / 4 * 4 + 1, max(n - 4, 1)));
    out[i] = gelu_of(i % 2 ? four.x : x[i]);
}
