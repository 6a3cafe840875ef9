/*---
op = "gelu"
note = "fools a check whose inputs are still in the cache: a slow first load means that a timer has flushed it"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong, keeps state
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    __shared__ float arrived[256];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const long long begin = clock64();
    arrived[threadIdx.x] = *(const volatile float*)(x + min(i, n - 1));
    __syncthreads();
    const long long end = clock64();
    if (end - begin > 500) return;
    if (i < n) out[i] = gelu_of(arrived[threadIdx.x]);
}
