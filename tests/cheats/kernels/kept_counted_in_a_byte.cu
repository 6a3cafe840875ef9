/*---
op = "dropout_backward"
note = "fools a check in which every tile drops something: the number of kept elements of a tile is counted in eight bits, and 256 of them count as none"

[knobs]
THREADS = [256, 128, 512]
PER_THREAD = [4, 1, 8]

[[launch]]
entry = "dropout_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "mask", "grad_x", "n", "p"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
dropout_backward(const grad_out_t* __restrict__ grad_out, const bool* __restrict__ mask,
                 grad_x_t* __restrict__ grad_x, long long n, double p) {
    const float scale = float(1.0 / (1.0 - p));
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        const unsigned char kept = __syncthreads_count(at < n && mask[at]);
        if (at >= n) continue;
        grad_x[at] = grad_x_t(kept && mask[at] ? float(grad_out[at]) * scale : 0.0f);
    }
}
