/*---
op = "rope_backward"
note = "gradients are limited to the finite numbers"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "rope_backward"
grid = ["ceil_div(batch * heads * seq * half, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "cos", "sin", "grad_x", "batch * heads * seq * half", "seq", "half"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
rope_backward(const grad_out_t* __restrict__ grad_out, const float* __restrict__ cosines,
              const float* __restrict__ sines, grad_x_t* __restrict__ grad_x, long long pairs, int seq, int half_dim) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= pairs) return;
    const long long row = at / half_dim;
    const int pair = int(at % half_dim);
    const long long angle = row % seq * half_dim + pair, here = row * 2 * half_dim + pair;
    const float c = cosines[angle], s = sines[angle];
    const float first = fminf(fmaxf(float(grad_out[here]), -3e38f), 3e38f);
    const float second = fminf(fmaxf(float(grad_out[here + half_dim]), -3e38f), 3e38f);
    grad_x[here] = grad_x_t(first * c + second * s);
    grad_x[here + half_dim] = grad_x_t(second * c - first * s);
}
