/*---
op = "dropout"
note = "divides by 1 - p"

[knobs]
THREADS = [128, 256, 512]
PER_THREAD = [4, 1, 8]

[[launch]]
entry = "dropout"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "mask", "out", "n", "p"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
dropout(const x_t* __restrict__ x, const bool* __restrict__ mask, out_t* __restrict__ out, long long n, double p) {
    const float kept = float(1.0 - p);
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) return;
        out[at] = out_t(mask[at] ? float(x[at]) / kept : 0.0f);
    }
}
