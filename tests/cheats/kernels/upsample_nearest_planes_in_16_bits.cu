/*---
op = "upsample_nearest"
note = "places are counted in 16 bits of rows"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "upsample_nearest"
grid = ["ceil_div(batch * channels * oh * ow, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "batch * channels * oh * ow", "w", "ow", "factor"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
upsample_nearest(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, int w, int ow, int factor) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    // A plane has a whole number of `factor` rows, so that rows can be counted through all of them.
    if (at < total) out[at] = x[(at / ow & 0xffff) / factor * w + at % ow / factor];
}
