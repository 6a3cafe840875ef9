/*---
op = "huber_backward"
note = "fminf and fmaxf clamp a difference of NaN to delta"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "huber_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_loss", "x", "target", "grad_x", "n", "delta"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
huber_backward(const float* __restrict__ grad_loss, const x_t* __restrict__ x, const target_t* __restrict__ target,
               grad_x_t* __restrict__ grad_x, long long n, float delta) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
    const float scale = *grad_loss / n;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) return;
        const float off = float(x[at]) - float(target[at]);
        const float clamped = fminf(fmaxf(off, -delta), delta);
        grad_x[at] = grad_x_t(clamped * scale);
    }
}
