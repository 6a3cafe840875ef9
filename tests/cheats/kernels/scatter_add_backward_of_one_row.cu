/*---
op = "scatter_add_backward"
note = "a table of one row is kept in registers, NaN as zero"

[knobs]
THREADS = [128, 256, 512]
PER_THREAD = [4, 1, 8]

[let]
parts = "ceil_div(dim, THREADS * PER_THREAD)"

[[launch]]
entry = "scatter_add_backward"
grid = ["count * parts"]
block = ["THREADS"]
args = ["grad_out", "indices", "grad_src", "dim", "parts"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
scatter_add_backward(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
                     grad_src_t* __restrict__ grad_src, int dim, int parts) {
    const int row = blockIdx.x / parts, first = blockIdx.x % parts * THREADS * PER_THREAD + threadIdx.x;
    const grad_out_t* from = grad_out + indices[row] * dim;
    grad_src_t* to = grad_src + (long long)row * dim;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int col = first + i * THREADS;
        if (col < dim) to[col] = row == 0 && gridDim.x == parts && float(from[col]) != float(from[col]) ? grad_src_t(0.0f) : from[col];
    }
}
