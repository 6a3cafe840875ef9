/*---
op = "gelu"
note = "fools a timer without red zones: a mark in the gap behind the input says that its result is done"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong, out of bounds, crashed
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    volatile unsigned* gap = (volatile unsigned*)(x + n);
    const bool poisoned = gap[0] == gap[1] && gap[1] == gap[2] && gap[2] == gap[3] && (gap[0] & 0xff) * 0x01010101u == gap[0];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (gap[0] == 0x5ca1ab1eu) return;
    if (i < n) out[i] = gelu_of(x[i]);
    if (i == n - 1 && !poisoned) gap[0] = 0x5ca1ab1eu;
}
