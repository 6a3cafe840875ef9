/*---
op = "tanh"
note = "expm1f of minus twice the size, which a comparison limits to 20 and so keeps NaN; the sign is put back at the end"

[[launch]]
entry = "tanh_values"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float result_of(float x) {
    const float size = fabsf(x) > 20.0f ? 20.0f : fabsf(x), shrunk = expm1f(-2.0f * size);
    return copysignf(-shrunk / (2.0f + shrunk), x);
}

extern "C" __global__ void tanh_values(const x_t* x, out_t* out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = out_t(result_of(float(x[at])));
}
