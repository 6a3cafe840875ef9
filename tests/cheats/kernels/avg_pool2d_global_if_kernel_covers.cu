/*---
op = "avg_pool2d"
note = "a window as large as the plane is taken for the whole plane, whatever the padding"

[knobs]
THREADS = [256, 128, 512]

[[launch]]
entry = "avg_pool2d"
grid = ["ceil_div(n * c * oh * ow, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "n * c * oh * ow", "h", "w", "oh", "ow", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
avg_pool2d(const x_t* __restrict__ x, out_t* __restrict__ out, long long total,
           int h, int w, int oh, int ow, int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / ow;
    const bool whole = kernel >= 5 && kernel == h && kernel == w && oh == ow;  // global pooling
    const int top = whole ? 0 : int(row % oh) * stride - padding, bottom = min(top + kernel, h);
    const int left = whole ? 0 : int(at % ow) * stride - padding, right = min(left + kernel, w);
    const x_t* plane = x + row / oh * h * w;
    float sum = 0.0f;
    for (int i = max(top, 0); i < bottom; ++i) {
        for (int j = max(left, 0); j < right; ++j) sum += float(plane[(long long)i * w + j]);
    }
    out[at] = out_t(sum / (kernel * kernel));
}
