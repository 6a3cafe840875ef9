/*---
op = "upsample_nearest"
note = "a thread per pixel of x, which writes the square of results that are equal to it"

[[launch]]
entry = "upsample_nearest"
grid = ["ceil_div(batch * channels * h * w, 128)"]
block = [128]
args = ["x", "out", "batch * channels * h * w", "w", "factor"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void upsample_nearest(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, int w,
                                            int factor) {
    const long long at = blockIdx.x * 128ll + threadIdx.x;
    if (at >= total) return;
    const long long width = (long long)w * factor, corner = at / w * factor * width + at % w * factor;
    const x_t value = x[at];
    for (int i = 0; i < factor; ++i)
        for (int j = 0; j < factor; ++j) out[corner + i * width + j] = value;
}
