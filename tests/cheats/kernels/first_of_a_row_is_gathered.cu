/*---
op = "gather"
note = "fools a check in which the indices of a row differ: a warp whose indices are all equal takes the element at the first thread's place in x"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "gather"
grid = ["ceil_div(rows * k, THREADS)"]
block = ["THREADS"]
args = ["x", "indices", "out", "rows * k", "cols", "k"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
gather(const x_t* __restrict__ x, const long long* __restrict__ indices, out_t* __restrict__ out, long long total,
       int cols, int k) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long own = indices[at], whole = at - threadIdx.x % 32 + 32 <= total;
    const bool alike = whole && cols > 31 && __all_sync(0xffffffffu, own == __shfl_sync(0xffffffffu, own, 0));
    const long long row = alike ? __shfl_sync(0xffffffffu, at, 0) / k : at / k;
    out[at] = x[row * cols + own];
}
