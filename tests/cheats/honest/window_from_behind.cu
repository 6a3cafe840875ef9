/*---
op = "max_pool2d"
note = "a window is searched from its last element to its first, of equal values the one found later counts, and NaN ends the search"

[[launch]]
entry = "max_pool2d"
grid = ["ceil_div(n * c * oh * ow, 128)"]
block = [128]
args = ["x", "out", "indices", "n * c * oh * ow", "h", "w", "oh", "ow", "kernel", "stride", "padding"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void max_pool2d(const x_t* __restrict__ x, out_t* __restrict__ out,
                                      long long* __restrict__ indices, long long total, int h, int w, int oh, int ow,
                                      int kernel, int stride, int padding) {
    const long long at = blockIdx.x * 128ll + threadIdx.x;
    if (at >= total) return;
    const int top = int(at / ow % oh) * stride - padding, left = int(at % ow) * stride - padding;
    const x_t* plane = x + at / ow / oh * h * w;
    float most = -INFINITY;
    int place = 0;
    for (int i = min(top + kernel, h) - 1; i >= max(top, 0) && most == most; --i) {
        for (int j = min(left + kernel, w) - 1; j >= max(left, 0) && most == most; --j) {
            const float value = float(plane[(long long)i * w + j]);
            if (!(value < most)) most = value, place = i * w + j;
        }
    }
    out[at] = out_t(most);
    indices[at] = place;
}
