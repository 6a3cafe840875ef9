/*---
op = "relu"
note = "a constant of zero that shares its declaration with another; any n"

[[launch]]
entry = "relu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr float MOST = 1.0f, LEAST = 0.0f;

extern "C" __global__ void relu(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    __shared__ float kept[256];
    if (at < n) kept[threadIdx.x] = float(x[at]);
    if (at < n) out[at] = out_t(float(x[at]) <= LEAST ? LEAST : kept[threadIdx.x]);  // NaN stays NaN
}
