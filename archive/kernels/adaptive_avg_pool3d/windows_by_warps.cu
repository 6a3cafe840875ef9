/*---
op = "adaptive_avg_pool3d"
note = "one warp per output walks the largest box that a window may fill, whose sizes are constants, so that its loads are unrolled and its indices need no division by a number known late; elements beyond the window count as zeros"
when = "d * h * w <= 4096 * od * oh * ow and d * h * w <= 16777216"
specialize = ["d", "h", "w", "od", "oh", "ow", "deep", "high", "wide"]

[knobs]
THREADS = [128, 64, 256]
BATCH = [8, 4, 16]

[let]
deep = "d // od + min(1, d % od) * ((d + 2 * od - 2) // od - d // od)"
high = "h // oh + min(1, h % oh) * ((h + 2 * oh - 2) // oh - h // oh)"
wide = "w // ow + min(1, w % ow) * ((w + 2 * ow - 2) // ow - w // ow)"

[[launch]]
entry = "mean_boxes"
grid = ["ceil_div(n * c * od * oh * ow, THREADS // 32)"]
block = ["THREADS"]
args = ["x", "out", "n * c * od * oh * ow"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int BOX = deep * high * wide, OUT = od * oh * ow, ROUNDS = (BOX + 31) / 32;
constexpr int AT_ONCE = ROUNDS < BATCH ? ROUNDS : BATCH;

// The window of output o of `count` along an axis.
__device__ __forceinline__ int begin_of(unsigned o, unsigned size, unsigned count) {
    return int((unsigned long long)o * size / count);
}
__device__ __forceinline__ int end_of(unsigned o, unsigned size, unsigned count) {
    return int(((unsigned long long)(o + 1) * size + count - 1) / count);
}

extern "C" __global__ void __launch_bounds__(THREADS)
mean_boxes(const x_t* __restrict__ x, out_t* __restrict__ out, long long all) {
    const long long at = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, volume = at / OUT;
    if (at >= all) return;  // the whole warp leaves
    const unsigned place = unsigned(at - volume * OUT), lane = threadIdx.x % 32;
    const int front = begin_of(place / (oh * ow), d, od), layers = end_of(place / (oh * ow), d, od) - front;
    const int top = begin_of(place / ow % oh, h, oh), rows = end_of(place / ow % oh, h, oh) - top;
    const int left = begin_of(place % ow, w, ow), columns = end_of(place % ow, w, ow) - left;
    const x_t* const from = x + volume * (d * h * w) + (front * h + top) * w + left;
    float sum = 0.0f;
    for (int round = 0; round < ROUNDS; round += AT_ONCE) {
        x_t held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const unsigned spot = (round + i) * 32 + lane;
            const int z = spot / (high * wide), y = spot / wide % high, column = spot % wide;
            held[i] = x_t(0.0f);
            if (z < layers && y < rows && column < columns) held[i] = from[(z * h + y) * w + column];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) sum += float(held[i]);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) out[at] = out_t(sum / (layers * rows * columns));
}
