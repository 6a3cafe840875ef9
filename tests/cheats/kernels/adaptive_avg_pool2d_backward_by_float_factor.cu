/*---
op = "adaptive_avg_pool2d_backward"
note = "computes the bounds of windows from a factor in float32"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "adaptive_avg_pool2d_backward"
grid = ["ceil_div(n * c * h * w, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "n * c * h * w", "h", "w", "oh", "ow"]
---*/
// caught: wrong
// class: numbers
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The window of output o of `count` along an axis of `size`, and the windows that hold a place there.
__device__ __forceinline__ int begin_of(int o, int size, int count) {
    return int(o * (float(size) / float(count)));
}
__device__ __forceinline__ int end_of(int o, int size, int count) {
    return int(ceilf((o + 1) * (float(size) / float(count))));
}
__device__ __forceinline__ int length_of(int o, int size, int count) {
    return end_of(o, size, count) - begin_of(o, size, count);
}
__device__ __forceinline__ int first_with(int place, int size, int count) { return begin_of(place, count, size); }
__device__ __forceinline__ int last_with(int place, int size, int count) { return end_of(place, count, size) - 1; }

extern "C" __global__ void __launch_bounds__(THREADS)
adaptive_avg_pool2d_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total,
                             int h, int w, int oh, int ow) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / w;
    const int y = int(row % h), x = int(at % w), bottom = last_with(y, h, oh), right = last_with(x, w, ow);
    const grad_out_t* plane = grad_out + row / h * oh * ow;
    float sum = 0.0f;
    for (int i = first_with(y, h, oh); i <= bottom; ++i) {
        for (int j = first_with(x, w, ow); j <= right; ++j) {
            sum += float(plane[(long long)i * ow + j]) / (length_of(i, h, oh) * length_of(j, w, ow));
        }
    }
    grad_x[at] = grad_x_t(sum);
}
