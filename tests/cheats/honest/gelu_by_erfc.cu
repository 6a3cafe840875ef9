/*---
op = "gelu"
note = "the complementary error function, which loses nothing for large negative values"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float result_of(float x) { return x * (0.5f * erfcf(-0.70710678f * x)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = out_t(result_of(float(x[at])));
}
