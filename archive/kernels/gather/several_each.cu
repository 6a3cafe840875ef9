/*---
op = "gather"
note = "several neighbouring results a thread: their indices by 16-byte loads, then all values at once, then one store"
specialize = ["k", "vec", "packs", "pieces"]

[knobs]
THREADS = [256, 128, 512]
PIECES = [1, 2, 4]
PER = [4, 2, 8]

[let]
vec = "min(PER, 1 + (1 - min(1, k % 2)) + 2 * (1 - min(1, k % 4)) + 4 * (1 - min(1, k % 8)))"
packs = "k // vec"
pieces = "PIECES * (PER // vec)"
total = "rows * packs"

[[launch]]
entry = "gather_packs"
grid = ["ceil_div(total, THREADS * pieces)"]
block = ["THREADS"]
args = ["x", "indices", "out", "total", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

extern "C" __global__ void __launch_bounds__(THREADS)
gather_packs(const x_t* __restrict__ x, const long long* __restrict__ indices, out_t* __restrict__ out, long long total,
             int cols) {
    const long long first = (long long)blockIdx.x * (THREADS * pieces) + threadIdx.x;
    Pack<long long> places[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (first + i * THREADS < total) places[i] = reinterpret_cast<const Pack<long long>*>(indices)[first + i * THREADS];
    }
    Pack<out_t> result[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const long long at = first + i * THREADS;
        if (at >= total) continue;
        const x_t* row = x + at / packs * cols;
#pragma unroll
        for (int e = 0; e < vec; ++e) result[i].at[e] = row[places[i].at[e]];
    }
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (first + i * THREADS < total) reinterpret_cast<Pack<out_t>*>(out)[first + i * THREADS] = result[i];
    }
}
