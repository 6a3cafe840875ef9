/*---
op = "rotary_embedding"
note = "a thread keeps the sines and cosines of its pairs and turns them in several heads of a token, which lie beside each other and whose loads are all in flight at once; 16-byte accesses where half of a head allows"
specialize = ["pairs", "vec", "packs", "heads", "turns"]

[knobs]
HEADS = [4, 1, 2, 8]
THREADS = [128, 64, 256]

[let]
pairs = "dim // 2"
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, pairs % 2)) + 2 * (1 - min(1, pairs % 4)) + 4 * (1 - min(1, pairs % 8)))"
packs = "pairs // vec"
turns = "ceil_div(heads, HEADS)"
total = "tokens * turns * packs"

[[launch]]
entry = "turn_heads"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["x", "cos", "sin", "out", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

extern "C" __global__ void __launch_bounds__(THREADS)
turn_heads(const x_t* __restrict__ x, const float* __restrict__ cosines, const float* __restrict__ sines,
    out_t* __restrict__ out, long long total) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int pair = int(at % packs) * vec, first = int(at / packs % turns) * HEADS;
    const long long token = at / packs / turns, angle = token * 2 * pairs + pair;
    const long long start = (token * heads + first) * 2 * pairs + pair;
    Pack<x_t> lefts[HEADS], rights[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (first + h >= heads) continue;
        const x_t* from = x + start + h * 2 * pairs;
        lefts[h] = *reinterpret_cast<const Pack<x_t>*>(from);
        rights[h] = *reinterpret_cast<const Pack<x_t>*>(from + pairs);
    }
    float c_of[vec], d_of[vec], s_of[vec], t_of[vec];
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        c_of[e] = cosines[angle + e], d_of[e] = cosines[angle + pairs + e];
        s_of[e] = sines[angle + e], t_of[e] = sines[angle + pairs + e];
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (first + h >= heads) continue;
        Pack<out_t> low, high;
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            const float a = float(lefts[h].at[e]), b = float(rights[h].at[e]);
            const float c = c_of[e], d = d_of[e], s = s_of[e], t = t_of[e];
            low.at[e] = out_t(a * c - b * s);
            high.at[e] = out_t(b * d + a * t);
        }
        out_t* to = out + start + h * 2 * pairs;
        *reinterpret_cast<Pack<out_t>*>(to) = low;
        *reinterpret_cast<Pack<out_t>*>(to + pairs) = high;
    }
}
