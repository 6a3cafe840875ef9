/*---
op = "upsample_nearest"
note = "writes zero for numbers below the smallest normal one"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "upsample_nearest"
grid = ["ceil_div(batch * channels * oh * ow, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "batch * channels * oh * ow", "w", "ow", "factor"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
upsample_nearest(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, int w, int ow, int factor) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    // A plane has a whole number of `factor` rows, so that rows can be counted through all of them.
    if (at < total) {
        const x_t value = x[at / ow / factor * w + at % ow / factor];
        out[at] = fabsf(float(value)) < 1.17549435e-38f ? x_t(0.0f) : value;
    }
}
