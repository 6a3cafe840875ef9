/*---
op = "adaptive_avg_pool2d"
note = "where all windows are alike: rows of results follow one another without regard to planes; a thread adds up the rows of a window, in as many neighbouring columns as divide its width, and what neighbours have is added up through shared memory, without an index by division in the loop"
when = "h % oh == 0 and w % ow == 0 and w * itemsize(x) <= 16384"
specialize = ["kh", "kw", "w", "ow", "vec", "pieces", "rows", "items"]

[knobs]
ITEMS = [4, 2, 8]
THREADS = [256, 128]

[let]
kh = "h // oh"
kw = "w // ow"
vec = "min(16 // itemsize(x), 1 + (1 - min(1, kw % 2)) + 2 * (1 - min(1, kw % 4)) + 4 * (1 - min(1, kw % 8)))"
pieces = "w // vec"
rows = "max(1, THREADS * ITEMS // pieces)"
items = "ceil_div(rows * pieces, THREADS)"

[[launch]]
entry = "pool_rows"
grid = ["ceil_div(n * c * oh, rows)"]
block = ["THREADS"]
shared = "4 * rows * pieces"
args = ["x", "out", "n * c * oh"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int OF_WINDOW = kw / vec;
struct alignas(sizeof(x_t) * vec < 16 ? sizeof(x_t) * vec : 16) Pack { x_t at[vec]; };
extern __shared__ float sums[];

extern "C" __global__ void __launch_bounds__(THREADS)
pool_rows(const x_t* __restrict__ x, out_t* __restrict__ out, long long all) {
    const long long first = (long long)blockIdx.x * rows;
    const int own = int(min((long long)rows, all - first));
    const Pack* const from = reinterpret_cast<const Pack*>(x + first * (kh * w));
    float of[items] = {};
    int starts[items];
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const int at = i * THREADS + threadIdx.x;
        starts[i] = at / pieces < own ? at / pieces * (kh * pieces) + at % pieces : -1;
    }
#pragma unroll 8
    for (int a = 0; a < kh; ++a) {
        Pack held[items];
#pragma unroll
        for (int i = 0; i < items; ++i) held[i] = starts[i] >= 0 ? from[starts[i] + a * pieces] : Pack{};
#pragma unroll
        for (int i = 0; i < items; ++i) {
            float some = 0.0f;
#pragma unroll
            for (int e = 0; e < vec; ++e) some += float(held[i].at[e]);
            of[i] += some;
        }
    }
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const int at = i * THREADS + threadIdx.x;
        if (starts[i] < 0) continue;
        if constexpr (OF_WINDOW == 1) out[first * ow + at] = out_t(of[i] / (kh * kw));
        else sums[at] = of[i];
    }
    if constexpr (OF_WINDOW > 1) {
        __syncthreads();
        for (int at = threadIdx.x; at < own * ow; at += THREADS) {
            float sum = 0.0f;
#pragma unroll 8
            for (int p = 0; p < OF_WINDOW; ++p) sum += sums[at * OF_WINDOW + p];
            out[first * ow + at] = out_t(sum / (kh * kw));
        }
    }
}
