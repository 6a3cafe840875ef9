/*---
op = "max_pool2d_backward"
note = "fools a check on small images: the place in the plane is kept in 16 bits"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "max_pool2d_backward"
grid = ["ceil_div(n * c * h * w, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "indices", "grad_x", "n * c * h * w", "h", "w", "oh", "ow", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The windows that hold a place: they begin at multiples of the stride in the padded plane.
__device__ __forceinline__ int first_window(int from, int kernel, int stride) {
    return from < kernel ? 0 : (from - kernel) / stride + 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
max_pool2d_backward(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
                    grad_x_t* __restrict__ grad_x, long long total, int h, int w, int oh, int ow,
                    int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / w, plane = row / h;
    const int y = int(row % h) + padding, x = int(at % w) + padding;
    const int bottom = min(y / stride, oh - 1), right = min(x / stride, ow - 1);
    const unsigned short here = at - plane * h * w;
    float sum = 0.0f;
    for (int i = first_window(y, kernel, stride); i <= bottom; ++i) {
        for (int j = first_window(x, kernel, stride); j <= right; ++j) {
            const long long window = (plane * oh + i) * ow + j;
            if (indices[window] == here) sum += float(grad_out[window]);
        }
    }
    grad_x[at] = grad_x_t(sum);
}
