/*---
op = "upsample_nearest_backward"
note = "a thread adds up the squares under some neighbouring elements, whose rows it reads by the widest loads, all of up to four before their first use"
when = "factor <= 16"
specialize = ["w", "ow", "factor", "vec", "run", "chunks", "total"]

[knobs]
THREADS = [256, 128, 512]
PER = [16, 8, 32]

[let]
full = "16 // itemsize(grad_out)"
vec = "min(1 + (1 - min(1, w % 2)) + 2 * (1 - min(1, w % 4)) + 4 * (1 - min(1, w % 8)), max(1, min(full, PER // itemsize(grad_out) // factor)))"
wide = "vec * factor"
run = "min(full, 1 + (1 - min(1, wide % 2)) + 2 * (1 - min(1, wide % 4)) + 4 * (1 - min(1, wide % 8)))"
chunks = "w // vec"
total = "batch * channels * h * chunks"

[[launch]]
entry = "shrink"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using index = decltype(total + 0);
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };

extern "C" __global__ void __launch_bounds__(THREADS)
shrink(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x) {
    constexpr int RUNS = vec * factor / run;
    constexpr int TOGETHER = factor < 4 ? factor : 4;
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / chunks;
    const int col = int(at % chunks) * vec;
    float sum[vec] = {};
#pragma unroll
    for (int first = 0; first < factor; first += TOGETHER) {
        Pack<grad_out_t, run> held[TOGETHER][RUNS];
#pragma unroll
        for (int r = 0; r < TOGETHER; ++r) {
            if (first + r >= factor) continue;
            const grad_out_t* from = grad_out + (row * factor + first + r) * ow + col * factor;
#pragma unroll
            for (int i = 0; i < RUNS; ++i) held[r][i] = reinterpret_cast<const Pack<grad_out_t, run>*>(from)[i];
        }
#pragma unroll
        for (int r = 0; r < TOGETHER; ++r) {
            if (first + r >= factor) continue;
#pragma unroll
            for (int v = 0; v < vec; ++v) {
                float some = 0.0f;
#pragma unroll
                for (int j = 0; j < factor; ++j) some += float(held[r][(v * factor + j) / run].at[(v * factor + j) % run]);
                sum[v] += some;
            }
        }
    }
    Pack<grad_x_t, vec> result;
#pragma unroll
    for (int v = 0; v < vec; ++v) result.at[v] = grad_x_t(sum[v]);
    *reinterpret_cast<Pack<grad_x_t, vec>*>(grad_x + row * w + col) = result;
}
