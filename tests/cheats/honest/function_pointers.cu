/*---
op = "gelu"
note = "two functions in a table, for both signs; which one is called is known only when the value is there"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Function = float (*)(float);
__device__ __noinline__ float of_positive(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ __noinline__ float of_negative(float x) { return 0.5f * x * erfcf(-x * 0.70710678118654752f); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const Function functions[2] = {of_positive, of_negative};
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = functions[x[i] < 0.0f](x[i]);
}
