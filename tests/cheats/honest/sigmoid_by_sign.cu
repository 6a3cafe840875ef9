/*---
op = "sigmoid"
note = "two branches on the sign, so that no exponential overflows; NaN takes the second"

[[launch]]
entry = "sigmoid"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float result_of(float x) {
    if (x >= 0.0f) return 1.0f / (1.0f + expf(-x));
    const float small = expf(x);
    return small / (1.0f + small);
}

extern "C" __global__ void sigmoid(const x_t* x, out_t* out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = out_t(result_of(float(x[at])));
}
