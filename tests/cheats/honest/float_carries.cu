/*---
op = "cumsum"
note = "a warp per row scans 32 columns at a time by shuffles and hands the last sum on to the next 32 in float32"

[[launch]]
entry = "scan"
grid = ["ceil_div(rows, 4)"]
block = [32, 4]
args = ["x", "out", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void scan(const x_t* x, out_t* out, int rows, int cols) {
    const long long row = blockIdx.x * 4ll + threadIdx.y;
    if (row >= rows) return;
    float carry = 0.0f;
    for (int first = 0; first < cols; first += 32) {
        const int col = first + threadIdx.x;
        float part = col < cols ? float(x[row * cols + col]) : 0.0f;
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, part, step);
            if (threadIdx.x >= step) part += other;
        }
        part += carry;
        if (col < cols) out[row * cols + col] = out_t(part);
        carry = __shfl_sync(0xffffffffu, part, 31);
    }
}
