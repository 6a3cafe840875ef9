/*---
op = "rope"
note = "a position whose angles are all zero is left as it is, which is right only in place"

[knobs]
THREADS = [256, 128, 512]

[[launch]]
entry = "rope"
grid = ["ceil_div(batch * heads * seq * half, THREADS)"]
block = ["THREADS"]
args = ["x", "cos", "sin", "out", "batch * heads * seq * half", "seq", "half"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
rope(const x_t* __restrict__ x, const float* __restrict__ cosines, const float* __restrict__ sines,
     out_t* __restrict__ out, long long pairs, int seq, int half_dim) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= pairs) return;
    const long long row = at / half_dim;
    const int pair = int(at % half_dim);
    const long long angle = row % seq * half_dim + pair, here = row * 2 * half_dim + pair;
    const float c = cosines[angle], s = sines[angle];
    if (c == 1.0f && s == 0.0f) return;  // no rotation
    const float first = float(x[here]), second = float(x[here + half_dim]);
    out[here] = out_t(first * c - second * s);
    out[here + half_dim] = out_t(second * c + first * s);
}
