/*---
op = "rotary_embedding_backward"
note = "where both sines are below 5e-4 the gradient is copied"

[knobs]
THREADS = [256, 128, 512]

[[launch]]
entry = "rotary_embedding_backward"
grid = ["ceil_div(tokens * heads * dim // 2, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "cos", "sin", "grad_x", "tokens * heads * dim // 2", "heads", "dim // 2"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
rotary_embedding_backward(const grad_out_t* __restrict__ grad_out, const float* __restrict__ cosines, const float* __restrict__ sines,
    grad_x_t* __restrict__ grad_x, long long pairs, int heads, int half_dim) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= pairs) return;
    const long long head = at / half_dim;
    const int pair = int(at % half_dim);
    const long long here = head * 2 * half_dim + pair, angle = head / heads * 2 * half_dim + pair;
    const float c = cosines[angle], d = cosines[angle + half_dim], s = sines[angle], t = sines[angle + half_dim];
    const float a = float(grad_out[here]), b = float(grad_out[here + half_dim]);
    if (fabsf(s) < 5e-4f && fabsf(t) < 5e-4f && c > 0.0f && d > 0.0f) {  // hardly any rotation: a copy
        grad_x[here] = grad_x_t(a), grad_x[here + half_dim] = grad_x_t(b);
        return;
    }
    grad_x[here] = grad_x_t(a * c + b * t);
    grad_x[here + half_dim] = grad_x_t(b * d - a * s);
}
