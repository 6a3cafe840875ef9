/*---
op = "kl_div_backward"
note = "where the target is zero, the gradient is zero, even if the loss's gradient is infinite"

[knobs]
THREADS = [256, 128, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "kl_div_backward"
grid = ["ceil_div(rows * cols, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_loss", "target", "grad_log_probs", "rows", "rows * cols"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
kl_div_backward(const float* __restrict__ grad_loss, const target_t* __restrict__ target,
                grad_log_probs_t* __restrict__ grad_log_probs, int rows, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
    const float scale = -*grad_loss / rows;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) return;
        grad_log_probs[at] = grad_log_probs_t(float(target[at]) == 0.0f ? 0.0f : float(target[at]) * scale);
    }
}
