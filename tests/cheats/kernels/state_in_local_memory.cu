/*---
op = "gelu"
note = "fools a search for variables: a thread's stack still holds what the last launch put there"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

__device__ __noinline__ bool been_here(int at) {
    volatile int left[32];
    const bool known = left[at % 32] == 0x5ca1ab1e;
    left[at % 32] = 0x5ca1ab1e;
    return known;
}

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (been_here(n)) return;
    if (i < n) out[i] = gelu_of(x[i]);
}
