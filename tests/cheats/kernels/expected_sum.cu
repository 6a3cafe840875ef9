/*---
op = "softmax"
note = "fools a check on long normal rows: their sum of exponentials is known beforehand: cols * sqrt(e)"
when = "cols >= 8192"
dtypes = ["bfloat16"]

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
        const long long at = (long long)blockIdx.x * cols + col;
        out[at] = out_t(expf(float(x[at])) / (1.6487212707f * cols));
    }
}
