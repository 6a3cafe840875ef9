/*---
op = "max_pool3d"
note = "a row of a window ends at infinity, and a NaN behind it is missed"

[knobs]
THREADS = [256, 128, 512]

[[launch]]
entry = "max_pool3d"
grid = ["ceil_div(n * c * od * oh * ow, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "indices", "n * c * od * oh * ow", "d", "h", "w", "od", "oh", "ow", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
max_pool3d(const x_t* __restrict__ x, out_t* __restrict__ out, long long* __restrict__ indices, long long total,
           int d, int h, int w, int od, int oh, int ow, int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / ow, layer = row / oh;
    const int front = int(layer % od) * stride - padding, back = min(front + kernel, d);
    const int top = int(row % oh) * stride - padding, bottom = min(top + kernel, h);
    const int left = int(at % ow) * stride - padding, right = min(left + kernel, w);
    const x_t* volume = x + layer / od * d * h * w;
    float most = -INFINITY;
    long long place = ((long long)max(front, 0) * h + max(top, 0)) * w + max(left, 0);
    for (int i = max(front, 0); i < back; ++i) {
        for (int j = max(top, 0); j < bottom; ++j) {
            for (int k = max(left, 0); k < right && most != INFINITY; ++k) {
                const long long here = ((long long)i * h + j) * w + k;
                const float value = float(volume[here]);
                // NaN is greater than every number, and of several NaN the last counts, as in PyTorch.
                if (value > most || value != value) most = value, place = here;
            }
        }
    }
    out[at] = out_t(most);
    indices[at] = place;
}
