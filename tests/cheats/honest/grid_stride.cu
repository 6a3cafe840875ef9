/*---
op = "gelu"
note = "a few blocks per multiprocessor stride over everything, whatever n is"
dtypes = ["bfloat16", "float16"]

[[launch]]
entry = "gelu"
grid = ["sms * 8"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        out[i] = out_t(gelu_of(float(x[i])));
    }
}
