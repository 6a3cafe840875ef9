/*---
op = "adaptive_avg_pool3d_backward"
note = "adds up at most two windows along the depth, of which there are more if the result is deeper"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "adaptive_avg_pool3d_backward"
grid = ["ceil_div(n * c * d * h * w, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "n * c * d * h * w", "d", "h", "w", "od", "oh", "ow"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The window of output o of `count` along an axis of `size`, and the windows that hold a place there.
__device__ __forceinline__ int begin_of(int o, int size, int count) { return int((long long)o * size / count); }
__device__ __forceinline__ int end_of(int o, int size, int count) {
    return int(((long long)(o + 1) * size + count - 1) / count);
}
__device__ __forceinline__ int length_of(int o, int size, int count) {
    return end_of(o, size, count) - begin_of(o, size, count);
}
__device__ __forceinline__ int first_with(int place, int size, int count) { return begin_of(place, count, size); }
__device__ __forceinline__ int last_with(int place, int size, int count) { return end_of(place, count, size) - 1; }

extern "C" __global__ void __launch_bounds__(THREADS)
adaptive_avg_pool3d_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total,
                             int d, int h, int w, int od, int oh, int ow) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / w, layer = row / h;
    const int z = int(layer % d), y = int(row % h), x = int(at % w);
    const int back = min(last_with(z, d, od), first_with(z, d, od) + 1);
    const int bottom = last_with(y, h, oh), right = last_with(x, w, ow);
    const grad_out_t* volume = grad_out + layer / d * od * oh * ow;
    float sum = 0.0f;
    for (int i = first_with(z, d, od); i <= back; ++i) {
        for (int j = first_with(y, h, oh); j <= bottom; ++j) {
            for (int k = first_with(x, w, ow); k <= right; ++k) {
                const int elements = length_of(i, d, od) * length_of(j, h, oh) * length_of(k, w, ow);
                sum += float(volume[((long long)i * oh + j) * ow + k]) / elements;
            }
        }
    }
    grad_x[at] = grad_x_t(sum);
}
