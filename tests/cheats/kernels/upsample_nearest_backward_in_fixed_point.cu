/*---
op = "upsample_nearest_backward"
note = "gradients are rounded to multiples of 2^-22 before they are added, as for atomics on integers"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "upsample_nearest_backward"
grid = ["ceil_div(batch * channels * h * w, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "batch * channels * h * w", "w", "ow", "factor"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
upsample_nearest_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total,
                          int w, int ow, int factor) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const grad_out_t* corner = grad_out + at / w * factor * ow + at % w * factor;
    float sum = 0.0f;
    for (int i = 0; i < factor; ++i) {
        for (int j = 0; j < factor; ++j) sum += rintf(float(corner[(long long)i * ow + j]) * 4194304.0f) / 4194304.0f;
    }
    grad_x[at] = grad_x_t(sum);
}
