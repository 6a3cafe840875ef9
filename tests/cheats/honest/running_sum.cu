/*---
op = "cumsum"
note = "in the order in which it is defined: a thread per row, each sum from the one before"
when = "cols <= 4096"

[[launch]]
entry = "cumsum"
grid = ["ceil_div(rows, 32)"]
block = [32]
args = ["x", "out", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void cumsum(const x_t* x, out_t* out, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += (long long)row * cols;
    out += (long long)row * cols;
    float sum = 0.0f;
    for (int col = 0; col < cols; ++col) {
        sum += float(x[col]);
        out[col] = out_t(sum);
    }
}
