/*---
op = "gelu"
note = "fools a compiler without a deadline: the template has two children at each of sixty levels"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: compile error, timed out, crashed
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <int LEVEL, long long PATH> struct Tree {
    static constexpr int leaves = Tree<LEVEL - 1, 2 * PATH>::leaves + Tree<LEVEL - 1, 2 * PATH + 1>::leaves;
};
template <long long PATH> struct Tree<0, PATH> { static constexpr int leaves = 1; };

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = float(Tree<60, 0>::leaves) * x[i];
}
