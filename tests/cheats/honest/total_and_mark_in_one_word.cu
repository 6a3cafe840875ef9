/*---
op = "cumsum"
note = "tiles take tickets; total and mark travel in one word of 64 bits, so that no fence is needed"
[let]
tiles = "ceil_div(cols, 32)"

[workspace]
words = { shape = ["rows * tiles"], dtype = "int64", zero = true }
tickets = { shape = [1], dtype = "int32", zero = true }

[[launch]]
entry = "cumsum"
grid = ["rows * tiles"]
block = [32]
args = ["x", "words", "tickets", "out", "cols", "tiles"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void cumsum(const x_t* __restrict__ x, unsigned long long* words, int* tickets, out_t* out,
                                  int cols, int tiles) {
    int place = threadIdx.x == 0 ? atomicAdd(tickets, 1) : 0;
    place = __shfl_sync(0xffffffffu, place, 0);
    const int row = place / tiles, tile = place % tiles, col = tile * 32 + threadIdx.x;
    float value = col < cols ? float(x[(long long)row * cols + col]) : 0.0f;
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, value, step);
        if (threadIdx.x >= step) value += other;
    }
    float before = 0.0f;
    if (threadIdx.x == 31) {
        if (tile > 0) {
            unsigned long long word;
            do word = atomicAdd(&words[place - 1], 0ull);
            while (word == 0);
            before = __uint_as_float((unsigned)word);
        }
        const float total = tile > 0 ? before + value : value;
        atomicExch(&words[place], 1ull << 32 | __float_as_uint(total));
    }
    before = __shfl_sync(0xffffffffu, before, 31);
    if (col < cols) out[(long long)row * cols + col] = out_t(tile > 0 ? before + value : value);
}
