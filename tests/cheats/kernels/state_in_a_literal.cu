/*---
op = "gelu"
note = "fools a search for variables: a string literal is memory too and can be written through a cast"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state, crashed
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

__device__ volatile char* notes() { return (volatile char*)"a place to count launches"; }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (notes()[0] > 'a' + 25) return;
    if (i < n) out[i] = gelu_of(x[i]);
    if (i == 0) ++notes()[0];
}
