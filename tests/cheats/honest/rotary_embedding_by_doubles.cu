/*---
op = "rotary_embedding"
note = "both products and their sum in doubles, rounded once"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "rotary_embedding"
grid = ["ceil_div(tokens * heads * dim // 2, THREADS)"]
block = ["THREADS"]
args = ["x", "cos", "sin", "out", "tokens * heads * dim // 2", "heads", "dim // 2"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
rotary_embedding(const x_t* __restrict__ x, const float* __restrict__ cosines, const float* __restrict__ sines,
    out_t* __restrict__ out, long long pairs, int heads, int half_dim) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= pairs) return;
    const long long head = at / half_dim;
    const int pair = int(at % half_dim);
    const long long here = head * 2 * half_dim + pair, angle = head / heads * 2 * half_dim + pair;
    const float c = cosines[angle], d = cosines[angle + half_dim], s = sines[angle], t = sines[angle + half_dim];
    const double a = float(x[here]), b = float(x[here + half_dim]);
    out[here] = out_t(float(a * c - b * s));
    out[here + half_dim] = out_t(float(b * d + a * t));
}
