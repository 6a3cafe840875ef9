/*---
op = "avg_pool2d"
note = "each row of a window is added up on its own, and the sum multiplied by the inverse of the area"

[[launch]]
entry = "avg_pool2d"
grid = ["min(ceil_div(n * c * oh * ow, 256), 32)"]
block = [256]
args = ["x", "out", "n * c * oh * ow", "h", "w", "oh", "ow", "kernel", "stride", "padding"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
avg_pool2d(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, int h, int w, int oh, int ow, int kernel,
           int stride, int padding) {
    const float share = 1.0f / float(kernel * kernel);
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < total; at += gridDim.x * 256ll) {
        const int top = int(at / ow % oh) * stride - padding, left = int(at % ow) * stride - padding;
        const x_t* plane = x + at / ow / oh * h * w;
        float sum = 0.0f;
        for (int row = max(top, 0); row < min(top + kernel, h); ++row) {
            float part = 0.0f;
            for (int col = max(left, 0); col < min(left + kernel, w); ++col) part += float(plane[(long long)row * w + col]);
            sum += part;
        }
        out[at] = out_t(sum * share);
    }
}
