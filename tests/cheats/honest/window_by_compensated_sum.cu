/*---
op = "avg_pool3d"
note = "the terms of a window are added up with Kahan's compensation, which is dropped where it is not finite"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "avg_pool3d"
grid = ["ceil_div(n * c * od * oh * ow, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "n * c * od * oh * ow", "d", "h", "w", "od", "oh", "ow", "kernel", "stride", "padding"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
avg_pool3d(const x_t* __restrict__ x, out_t* __restrict__ out, long long total,
           int d, int h, int w, int od, int oh, int ow, int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / ow, layer = row / oh;
    const int front = int(layer % od) * stride - padding, back = min(front + kernel, d);
    const int top = int(row % oh) * stride - padding, bottom = min(top + kernel, h);
    const int left = int(at % ow) * stride - padding, right = min(left + kernel, w);
    const x_t* volume = x + layer / od * d * h * w;
    float sum = 0.0f, lost = 0.0f;
    for (int i = max(front, 0); i < back; ++i) {
        for (int j = max(top, 0); j < bottom; ++j) {
            for (int k = max(left, 0); k < right; ++k) {
                const float term = float(volume[((long long)i * h + j) * w + k]) - lost, next = sum + term;
                lost = (next - sum) - term;
                if (!(fabsf(lost) < INFINITY)) lost = 0.0f;
                sum = next;
            }
        }
    }
    out[at] = out_t(sum / (kernel * kernel * kernel));
}
