/*---
op = "max_pool2d"
note = "a window as large as the plane is taken for the whole plane, whatever the padding"

[knobs]
THREADS = [256, 128, 512]

[[launch]]
entry = "max_pool2d"
grid = ["ceil_div(n * c * oh * ow, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "indices", "n * c * oh * ow", "h", "w", "oh", "ow", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
max_pool2d(const x_t* __restrict__ x, out_t* __restrict__ out, long long* __restrict__ indices, long long total,
           int h, int w, int oh, int ow, int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / ow;
    const bool whole = kernel == h && kernel == w;  // global pooling
    const int top = whole ? 0 : int(row % oh) * stride - padding, bottom = min(top + kernel, h);
    const int left = whole ? 0 : int(at % ow) * stride - padding, right = min(left + kernel, w);
    const x_t* plane = x + row / oh * h * w;
    float most = -INFINITY;
    long long place = (long long)max(top, 0) * w + max(left, 0);
    for (int i = max(top, 0); i < bottom; ++i) {
        for (int j = max(left, 0); j < right; ++j) {
            const float value = float(plane[(long long)i * w + j]);
            // NaN is greater than every number, and of several NaN the last counts, as in PyTorch.
            if (value > most || value != value) most = value, place = (long long)i * w + j;
        }
    }
    out[at] = out_t(most);
    indices[at] = place;
}
