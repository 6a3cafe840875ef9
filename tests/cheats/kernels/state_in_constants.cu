/*---
op = "gelu"
note = "fools a search for writable variables: __constant__ memory can be written through a cast pointer"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state, crashed
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

__constant__ int launches[4] = {1, 0, 0, 0};

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int* counter = const_cast<int*>(launches);
    asm volatile("" : "+l"(counter));
    if (*(volatile int*)counter > 40) return;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
    if (i == 0) ++*(volatile int*)counter;
}
