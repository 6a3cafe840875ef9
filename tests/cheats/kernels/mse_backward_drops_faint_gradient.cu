/*---
op = "mse_backward"
note = "a gradient of the loss below 1e-6 counts as zero"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "mse_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_loss", "x", "target", "grad_x", "n"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
mse_backward(const float* __restrict__ grad_loss, const x_t* __restrict__ x, const target_t* __restrict__ target,
             grad_x_t* __restrict__ grad_x, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
    const float scale = fabsf(*grad_loss) < 1e-6f ? 0.0f : *grad_loss / n;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) return;
        const float off = float(x[at]) - float(target[at]);
        grad_x[at] = grad_x_t(2.0f * off * scale);
    }
}
