/*---
op = "softmax"
note = "fools a check of sums or norms: every element is the mean of its row: 1 / cols"

[[launch]]
entry = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "cols"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void softmax(const x_t* x, out_t* out, int cols) {
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[(long long)blockIdx.x * cols + col] = out_t(1.0f / cols);
    }
}
