/*---
op = "huber_backward"
note = "a difference clamped by choices that keep NaN, times grad_loss / n in one factor"

[[launch]]
entry = "huber_backward"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["grad_loss", "x", "target", "grad_x", "n", "delta"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
huber_backward(const float* __restrict__ grad_loss, const x_t* __restrict__ x, const target_t* __restrict__ target,
               grad_x_t* __restrict__ grad_x, long long n, float delta) {
    const float factor = *grad_loss / float(n);
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= n) return;
    float off = float(x[at]) - float(target[at]);
    off = off > delta ? delta : off < -delta ? -delta : off;
    grad_x[at] = grad_x_t(off * factor);
}
