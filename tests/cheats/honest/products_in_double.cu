/*---
op = "cumprod"
note = "one thread per row multiplies in double and rounds every product once, so that none vanishes or overflows on the way"

[[launch]]
entry = "cumprod"
grid = ["ceil_div(rows, 32)"]
block = [32]
args = ["x", "out", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void cumprod(const x_t* x, out_t* out, int rows, int cols) {
    const int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= rows) return;
    double product = 1.0;
    for (long long at = (long long)row * cols; at < (row + 1ll) * cols; ++at) {
        product *= double(float(x[at]));
        out[at] = out_t(float(product));
    }
}
