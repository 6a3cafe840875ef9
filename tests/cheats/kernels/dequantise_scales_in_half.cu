/*---
op = "dequantise_rows_int8"
note = "scales go through half precision"

[knobs]
THREADS = [128, 256, 512]
PER_THREAD = [4, 1, 8]

[let]
parts = "ceil_div(cols, THREADS * PER_THREAD)"

[[launch]]
entry = "dequantise"
grid = ["rows * parts"]
block = ["THREADS"]
args = ["quantised", "scales", "out", "cols", "parts"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
dequantise(const quantised_t* __restrict__ quantised, const scales_t* __restrict__ scales, out_t* __restrict__ out,
           int cols, int parts) {
    const int row = blockIdx.x / parts, first = blockIdx.x % parts * THREADS * PER_THREAD + threadIdx.x;
    const float scale = __half2float(__float2half(float(scales[row])));
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int col = first + i * THREADS;
        if (col >= cols) return;
        const long long at = (long long)row * cols + col;
        out[at] = out_t(float(quantised[at]) * scale);
    }
}
