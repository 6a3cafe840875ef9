/*---
op = "permute"
note = "a block moves a tile of positions and heads, so that what it reads and what it writes both lie in long stretches; the widest accesses a row allows, all of a thread's loads in flight at once; no shared memory"
specialize = ["seq", "heads", "dim", "vec", "packs", "high", "wide", "down", "across", "steps"]

[knobs]
SEQ = [8, 4, 16, 32]
HEADS = [8, 4, 16, 32]
THREADS = [256, 128, 512]
LOADS = [4, 2, 8]

[let]
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, dim % 2)) + 2 * (1 - min(1, dim % 4)) + 4 * (1 - min(1, dim % 8)))"
packs = "dim // vec"
high = "min(seq, SEQ)"
wide = "min(heads, HEADS)"
down = "ceil_div(seq, high)"
across = "ceil_div(heads, wide)"
steps = "ceil_div(high * wide * packs, THREADS * LOADS)"

[[launch]]
entry = "permute_tiles"
grid = ["batch * down * across"]
block = ["THREADS"]
args = ["x", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct alignas(sizeof(x_t) * vec) Pack { x_t at[vec]; };

extern "C" __global__ void __launch_bounds__(THREADS)
permute_tiles(const x_t* __restrict__ x, out_t* __restrict__ out) {
    const int tile = blockIdx.x % (down * across), top = tile / across * high, left = tile % across * wide;
    const long long batch = blockIdx.x / (down * across);
    for (int step = 0; step < steps; ++step) {
        Pack held[LOADS];
        long long to[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = (step * LOADS + i) * THREADS + threadIdx.x, row = at / packs, col = at % packs * vec;
            const int place = top + row / wide, head = left + row % wide;
            to[i] = -1;
            if (row >= high * wide || place >= seq || head >= heads) continue;
            to[i] = ((batch * heads + head) * seq + place) * dim + col;
            held[i] = *reinterpret_cast<const Pack*>(x + ((batch * seq + place) * heads + head) * dim + col);
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            if (to[i] >= 0) *reinterpret_cast<Pack*>(out + to[i]) = held[i];
        }
    }
}
