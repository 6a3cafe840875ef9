/*---
op = "adaptive_avg_pool3d"
note = "small windows, all alike: one thread per output adds up its window by the widest loads that divide the window's width; neighbours read side by side; indices are divided once per output, by constants"
when = "d % od == 0 and h % oh == 0 and w % ow == 0 and d * h * w <= 128 * od * oh * ow and d * h * w <= 16777216 and n * c * od * oh * ow < 2147483648"
specialize = ["kd", "kh", "kw", "w", "h", "ow", "oh", "vec"]

[knobs]
ITEMS = [2, 1, 4]
THREADS = [256, 128, 512]

[let]
kd = "d // od"
kh = "h // oh"
kw = "w // ow"
vec = "min(16 // itemsize(x), 1 + (1 - min(1, kw % 2)) + 2 * (1 - min(1, kw % 4)) + 4 * (1 - min(1, kw % 8)))"

[[launch]]
entry = "pool_windows"
grid = ["ceil_div(n * c * od * oh * ow, THREADS * ITEMS)"]
block = ["THREADS"]
args = ["x", "out", "n * c * od * oh * ow"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int LOADS = kw / vec, TAPS = kd * kh * LOADS;
struct alignas(sizeof(x_t) * vec) Pack { x_t at[vec]; };

extern "C" __global__ void __launch_bounds__(THREADS)
pool_windows(const x_t* __restrict__ x, out_t* __restrict__ out, unsigned all) {
    const unsigned first = blockIdx.x * (THREADS * ITEMS) + threadIdx.x;
    const Pack* from[ITEMS];
    float sum[ITEMS] = {};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned at = min(first + i * THREADS, all - 1), row = at / ow, layer = row / oh;
        // Layers of windows follow one another without regard to volumes.
        const long long line = (long long)layer * (kd * h) + row % oh * kh;
        from[i] = reinterpret_cast<const Pack*>(x + line * w + at % ow * kw);
    }
#pragma unroll (TAPS <= 16 ? TAPS : 8)
    for (int t = 0; t < TAPS; ++t) {
        const int off = ((t / (kh * LOADS) * h + t / LOADS % kh) * w) / vec + t % LOADS;
        Pack held[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) held[i] = from[i][off];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            float some = 0.0f;
#pragma unroll
            for (int e = 0; e < vec; ++e) some += float(held[i].at[e]);
            sum[i] += some;
        }
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (first + i * THREADS < all) out[first + i * THREADS] = out_t(sum[i] / (kd * kh * kw));
    }
}
