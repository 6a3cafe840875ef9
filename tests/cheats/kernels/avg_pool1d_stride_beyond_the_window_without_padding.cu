/*---
op = "avg_pool1d"
note = "windows with gaps between them have no padding"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "avg_pool1d"
grid = ["ceil_div(n * c * ol, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "n * c * ol", "l", "ol", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
avg_pool1d(const x_t* __restrict__ x, out_t* __restrict__ out, long long total,
           int l, int ol, int kernel, int stride, int given_padding) {
    const int padding = stride > kernel ? 0 : given_padding;
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int begin = int(at % ol) * stride - padding, end = min(begin + kernel, l);
    const x_t* row = x + at / ol * l;
    float sum = 0.0f;
    for (int i = max(begin, 0); i < end; ++i) sum += float(row[i]);
    out[at] = out_t(sum / kernel);
}
