/*---
op = "sort_backward"
note = "places are read as 16 bits"

[knobs]
THREADS = [128, 256, 512, 1024]

[[launch]]
entry = "put_back"
grid = ["ceil_div(rows * cols, THREADS)"]
block = ["THREADS"]
args = ["grad_values", "indices", "grad_x", "rows * cols", "cols"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
put_back(const grad_values_t* __restrict__ grad_values, const long long* __restrict__ indices,
         grad_x_t* __restrict__ grad_x, long long total, int cols) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at < total) grad_x[at / cols * cols + (indices[at] & 0x3fff)] = grad_values[at];
}
