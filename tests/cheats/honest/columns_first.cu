/*---
op = "max_pool2d"
note = "looks through every window column by column, from the right; among equals the lesser index wins, among NaN the greater"

[[launch]]
entry = "max_pool2d"
grid = ["ceil_div(n * c * oh * ow, 128)"]
block = [128]
args = ["x", "out", "indices", "n * c * oh * ow", "h", "w", "oh", "ow", "kernel", "stride", "padding"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void max_pool2d(const x_t* x, out_t* out, long long* indices, long long total, int h, int w,
                                      int oh, int ow, int kernel, int stride, int padding) {
    const long long at = blockIdx.x * 128ll + threadIdx.x;
    if (at >= total) return;
    const int top = int(at / ow % oh) * stride - padding, left = int(at % ow) * stride - padding;
    const x_t* plane = x + at / ow / oh * h * w;
    float most = -INFINITY;
    int place = max(top, 0) * w + max(left, 0);
    for (int j = min(left + kernel, w) - 1; j >= max(left, 0); --j) {
        for (int i = max(top, 0); i < min(top + kernel, h); ++i) {
            const float value = float(plane[i * w + j]);
            const int here = i * w + j;
            if (value != value) place = most != most ? max(place, here) : here, most = value;
            else if (value > most || (value == most && here < place)) most = value, place = here;
        }
    }
    out[at] = out_t(most);
    indices[at] = place;
}
