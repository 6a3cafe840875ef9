/*---
op = "adaptive_avg_pool1d_backward"
note = "computes the bounds of windows by products in 32 bits, which overflow for long rows"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "adaptive_avg_pool1d_backward"
grid = ["ceil_div(n * c * l, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "n * c * l", "l", "ol"]
---*/
// caught: wrong, crashed
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The window of output o of `count` along an axis of `size`, and the windows that hold a place there.
__device__ __forceinline__ int begin_of(int o, int size, int count) { return o * size / count; }
__device__ __forceinline__ int end_of(int o, int size, int count) {
    return ((o + 1) * size + count - 1) / count;
}
__device__ __forceinline__ int length_of(int o, int size, int count) {
    return end_of(o, size, count) - begin_of(o, size, count);
}
__device__ __forceinline__ int first_with(int place, int size, int count) { return begin_of(place, count, size); }
__device__ __forceinline__ int last_with(int place, int size, int count) { return end_of(place, count, size) - 1; }

extern "C" __global__ void __launch_bounds__(THREADS)
adaptive_avg_pool1d_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total,
                             int l, int ol) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int place = int(at % l), last = last_with(place, l, ol);
    const grad_out_t* row = grad_out + at / l * ol;
    float sum = 0.0f;
    for (int i = first_with(place, l, ol); i <= last; ++i) sum += float(row[i]) / length_of(i, l, ol);
    grad_x[at] = grad_x_t(sum);
}
