/*---
op = "gather"
note = "fools a check on short rows: indices are cut to 15 bits"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "gather"
grid = ["ceil_div(rows * k, THREADS)"]
block = ["THREADS"]
args = ["x", "indices", "out", "rows * k", "cols", "k"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
gather(const x_t* __restrict__ x, const long long* __restrict__ indices, out_t* __restrict__ out, long long total,
       int cols, int k) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at < total) out[at] = x[at / k * cols + (indices[at] & 0x7fff)];
}
