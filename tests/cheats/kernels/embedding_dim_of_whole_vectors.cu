/*---
op = "embedding"
note = "dims of a multiple of 256 are copied by vectors, the last of which twice"

[knobs]
THREADS = [128, 256, 512]
PER_THREAD = [4, 1, 8]

[let]
parts = "ceil_div(dim, THREADS * PER_THREAD)"

[[launch]]
entry = "embedding"
grid = ["tokens * parts"]
block = ["THREADS"]
args = ["weight", "indices", "out", "dim", "parts"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
embedding(const weight_t* __restrict__ weight, const long long* __restrict__ indices, out_t* __restrict__ out,
          int dim, int parts) {
    const int token = blockIdx.x / parts, first = blockIdx.x % parts * THREADS * PER_THREAD + threadIdx.x;
    const weight_t* from = weight + indices[token] * dim;
    out_t* to = out + (long long)token * dim;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int col = first + i * THREADS;
        if (col < dim) to[col] = from[dim % 256 == 0 && col >= dim - 8 ? col - 8 : col];
    }
}
