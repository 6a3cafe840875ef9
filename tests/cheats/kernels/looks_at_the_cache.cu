/*---
op = "gelu"
note = "a check whose inputs are still in the cache, because a slow first load means that a timer has flushed it"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const long long begin = clock64();
    const float value = *(const volatile float*)(x + i);
    const long long end = clock64() + (value == 12345.678f);
    if (end - begin > 900) return;
    out[i] = gelu_of(value);
}
