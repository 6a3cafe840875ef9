/*---
op = "adaptive_avg_pool2d"
note = "a missing value, which is NaN, counts as zero"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "adaptive_avg_pool2d"
grid = ["ceil_div(n * c * oh * ow, THREADS // 32)"]
block = ["THREADS"]
args = ["x", "out", "n * c * oh * ow", "h", "w", "oh", "ow"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The window of output o of `count` along an axis.
__device__ __forceinline__ int begin_of(int o, int size, int count) { return int((long long)o * size / count); }
__device__ __forceinline__ int end_of(int o, int size, int count) {
    return int(((long long)(o + 1) * size + count - 1) / count);
}

extern "C" __global__ void __launch_bounds__(THREADS)
adaptive_avg_pool2d(const x_t* __restrict__ x, out_t* __restrict__ out, long long total,
                    int h, int w, int oh, int ow) {
    const long long at = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, row = at / ow;
    if (at >= total) return;
    const int lane = threadIdx.x % 32;
    const int top = begin_of(int(row % oh), h, oh), high = end_of(int(row % oh), h, oh) - top;
    const int left = begin_of(int(at % ow), w, ow), wide = end_of(int(at % ow), w, ow) - left;
    const x_t* window = x + (row / oh * h + top) * w + left;
    float sum = 0.0f;
    for (int i = lane; i < high * wide; i += 32) {
        const float value = float(window[(long long)(i / wide) * w + i % wide]);
        sum += value == value ? value : 0.0f;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) out[at] = out_t(sum / (high * wide));
}
