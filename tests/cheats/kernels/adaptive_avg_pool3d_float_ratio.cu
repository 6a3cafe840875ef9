/*---
op = "adaptive_avg_pool3d"
note = "windows begin and end at a product with the quotient of the sizes in float32"

[knobs]
THREADS = [256, 128, 512]

[[launch]]
entry = "adaptive_avg_pool3d"
grid = ["ceil_div(n * c * od * oh * ow, THREADS // 32)"]
block = ["THREADS"]
args = ["x", "out", "n * c * od * oh * ow", "d", "h", "w", "od", "oh", "ow"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The window of output o of `count` along an axis.
__device__ __forceinline__ int begin_of(int o, int size, int count) { return int(o * (float(size) / count)); }
__device__ __forceinline__ int end_of(int o, int size, int count) {
    return min(size, int(ceilf((o + 1) * (float(size) / count))));
}

extern "C" __global__ void __launch_bounds__(THREADS)
adaptive_avg_pool3d(const x_t* __restrict__ x, out_t* __restrict__ out, long long total,
                    int d, int h, int w, int od, int oh, int ow) {
    const long long at = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, row = at / ow, layer = row / oh;
    if (at >= total) return;
    const int lane = threadIdx.x % 32;
    const int front = begin_of(int(layer % od), d, od), deep = end_of(int(layer % od), d, od) - front;
    const int top = begin_of(int(row % oh), h, oh), high = end_of(int(row % oh), h, oh) - top;
    const int left = begin_of(int(at % ow), w, ow), wide = end_of(int(at % ow), w, ow) - left;
    const x_t* window = x + ((layer / od * d + front) * h + top) * w + left;
    float sum = 0.0f;
    for (int i = lane; i < deep * high * wide; i += 32) {
        const int plane = i / (high * wide), inside = i % (high * wide);
        sum += float(window[((long long)plane * h + inside / wide) * w + inside % wide]);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) out[at] = out_t(sum / (deep * high * wide));
}
