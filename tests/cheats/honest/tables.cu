/*---
op = "gelu"
note = "constants from a __constant__ array, a __device__ const table, a static const one and a string: all of them only read"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__constant__ float factors[2] = {0.5f, 0.70710678118654752f};
__device__ const int signs[4] = {1, -1, 1, -1};

__device__ int digit(int at) { return "0123456789"[at] - '0'; }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    static const float ones[3] = {1.0f, 1.0f, 1.0f};
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int sign = signs[i % 2] * signs[i % 2 + 2];
    out[i] = factors[0] * x[i] * (ones[i % 3] * digit(1) + erff(x[i] * factors[1])) * sign;
}
