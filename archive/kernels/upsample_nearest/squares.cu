/*---
op = "upsample_nearest"
note = "a thread reads some neighbouring elements at once and writes their squares row by row, as wide as the rows allow"
when = "factor <= 16"
specialize = ["w", "ow", "factor", "vec", "run", "chunks", "total"]

[knobs]
THREADS = [256, 128, 512]
PER = [16, 8, 32]

[let]
full = "16 // itemsize(x)"
vec = "min(1 + (1 - min(1, w % 2)) + 2 * (1 - min(1, w % 4)) + 4 * (1 - min(1, w % 8)), max(1, min(full, PER // itemsize(x) // factor)))"
wide = "vec * factor"
run = "min(full, 1 + (1 - min(1, wide % 2)) + 2 * (1 - min(1, wide % 4)) + 4 * (1 - min(1, wide % 8)))"
chunks = "w // vec"
total = "batch * channels * h * chunks"

[[launch]]
entry = "repeat"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["x", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using index = decltype(total + 0);
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };

extern "C" __global__ void __launch_bounds__(THREADS)
repeat(const x_t* __restrict__ x, out_t* __restrict__ out) {
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    // A plane has a whole number of `factor` rows, so that rows can be counted through all of them.
    const long long row = at / chunks;
    const int col = int(at % chunks) * vec;
    const Pack<x_t, vec> held = *reinterpret_cast<const Pack<x_t, vec>*>(x + row * w + col);
    Pack<out_t, run> line[vec * factor / run];
#pragma unroll
    for (int i = 0; i < vec * factor; ++i) line[i / run].at[i % run] = held.at[i / factor];
#pragma unroll
    for (int r = 0; r < factor; ++r) {
        Pack<out_t, run>* to = reinterpret_cast<Pack<out_t, run>*>(out + (row * factor + r) * ow + col * factor);
#pragma unroll
        for (int i = 0; i < vec * factor / run; ++i) to[i] = line[i];
    }
}
