/*---
op = "max_pool1d"
note = "no comparison with NaN is true: a window's search passes over it"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "max_pool1d"
grid = ["ceil_div(n * c * ol, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "indices", "n * c * ol", "l", "ol", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
max_pool1d(const x_t* __restrict__ x, out_t* __restrict__ out, long long* __restrict__ indices, long long total,
           int l, int ol, int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int begin = int(at % ol) * stride - padding, end = min(begin + kernel, l);
    const x_t* row = x + at / ol * l;
    float most = -INFINITY;
    int place = max(begin, 0);
    for (int i = place; i < end; ++i) {
        const float value = float(row[i]);
        if (value > most) most = value, place = i;
    }
    out[at] = out_t(most);
    indices[at] = place;
}
