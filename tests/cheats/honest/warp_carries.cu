/*---
op = "cumsum_backward"
note = "a warp per row scans 32 columns at a time from the end, and carries the sum so far in double"

[[launch]]
entry = "scan"
grid = ["ceil_div(rows, 4)"]
block = [32, 4]
args = ["grad_out", "grad_x", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void scan(const grad_out_t* grad_out, grad_x_t* grad_x, int rows, int cols) {
    const long long row = blockIdx.x * 4ll + threadIdx.y;
    if (row >= rows) return;
    double carry = 0.0;
    for (int end = cols; end > 0; end -= 32) {
        const int col = end - 1 - (int)threadIdx.x;
        float part = col >= 0 ? float(grad_out[row * cols + col]) : 0.0f;
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, part, step);
            if (threadIdx.x >= step) part += other;
        }
        if (col >= 0) grad_x[row * cols + col] = grad_x_t(float(carry + part));
        carry += __shfl_sync(0xffffffffu, part, 31);
    }
}
