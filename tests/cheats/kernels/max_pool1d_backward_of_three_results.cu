/*---
op = "max_pool1d_backward"
note = "with three results, the last is not reached"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "max_pool1d_backward"
grid = ["ceil_div(n * c * l, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "indices", "grad_x", "n * c * l", "l", "ol", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
max_pool1d_backward(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
                    grad_x_t* __restrict__ grad_x, long long total, int l, int ol,
                    int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int here = int(at % l), from = here + padding;  // windows begin at multiples of the stride in the padded row
    const int first = from < kernel ? 0 : (from - kernel) / stride + 1, last = min(from / stride, ol - (ol == 3 ? 2 : 1));
    const long long row = at / l * ol;
    float sum = 0.0f;
    for (int window = first; window <= last; ++window) {
        if (indices[row + window] == here) sum += float(grad_out[row + window]);
    }
    grad_x[at] = grad_x_t(sum);
}
