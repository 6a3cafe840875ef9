/*---
op = "gelu"
note = "whole vectors by one launch, the tail by another that is left out where there is none"
dtypes = ["float32", "float16"]

[let]
vec = "16 // itemsize(x)"
whole = "n // vec"
rest = "n % vec"

[[launch]]
entry = "vectors"
grid = ["ceil_div(whole, 256)"]
block = [256]
args = ["x", "out", "whole"]

[[launch]]
entry = "tail"
grid = ["rest"]
block = [1]
args = ["x", "out", "whole * vec"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Vec { x_t at[VEC]; };

extern "C" __global__ void vectors(const Vec* x, Vec* out, int whole) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= whole) return;
    Vec v = x[i];
    for (int e = 0; e < VEC; ++e) v.at[e] = x_t(gelu_of(float(v.at[e])));
    out[i] = v;
}

extern "C" __global__ void tail(const x_t* x, out_t* out, int first) {
    out[first + blockIdx.x] = out_t(gelu_of(float(x[first + blockIdx.x])));
}
