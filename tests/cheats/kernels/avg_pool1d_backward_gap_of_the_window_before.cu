/*---
op = "avg_pool1d_backward"
note = "with a stride above the kernel, a value in a gap counts for the window before it"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "avg_pool1d_backward"
grid = ["ceil_div(n * c * l, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "n * c * l", "l", "ol", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The windows that hold a place: they begin at multiples of the stride in the padded row.
__device__ __forceinline__ int first_window(int from, int kernel, int stride) {
    return from < kernel ? 0 : (from - kernel) / stride + 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
avg_pool1d_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total,
                    int l, int ol, int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int x = int(at % l) + padding, last = min(x / stride, ol - 1);
    const grad_out_t* row = grad_out + at / l * ol;
    float sum = 0.0f;
    for (int i = stride > kernel ? x / stride : first_window(x, kernel, stride); i <= last; ++i) sum += float(row[i]);
    grad_x[at] = grad_x_t(sum / kernel);
}
