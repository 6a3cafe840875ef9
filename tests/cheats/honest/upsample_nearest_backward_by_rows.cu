/*---
op = "upsample_nearest_backward"
note = "the places of a result are added up row by row, from the last to the first"

[[launch]]
entry = "upsample_nearest_backward"
grid = ["min(ceil_div(batch * channels * h * w, 256), 40)"]
block = [256]
args = ["grad_out", "grad_x", "batch * channels * h * w", "w", "ow", "factor"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
upsample_nearest_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total, int w,
                          int ow, int factor) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < total; at += gridDim.x * 256ll) {
        const grad_out_t* first = grad_out + at / w * factor * ow + at % w * factor;
        float sum = 0.0f;
        for (int row = factor - 1; row >= 0; --row) {
            float part = 0.0f;
            for (int col = factor - 1; col >= 0; --col) part += float(first[(long long)row * ow + col]);
            sum += part;
        }
        grad_x[at] = grad_x_t(sum);
    }
}
