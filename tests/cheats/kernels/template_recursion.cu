/*---
op = "gelu"
note = "fools a compiler without a limit: the template calls for itself for ever"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: compile error
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <int N> struct Next { static constexpr int value = Next<N + 1>::value; };

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = float(Next<0>::value) * x[i];
}
