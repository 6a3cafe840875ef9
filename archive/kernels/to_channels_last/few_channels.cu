/*---
op = "to_channels_last"
note = "few channels: a thread reads as many pixels as fill 16 bytes from each, and writes them all in one stretch"
when = "c <= 8"
specialize = ["c", "vec", "area"]

[knobs]
THREADS = [128, 256, 512]

[let]
area = "h * w"
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"

[[launch]]
entry = "weave"
grid = ["ceil_div(n * (area // vec), THREADS)"]
block = ["THREADS"]
args = ["x", "out", "n * (area // vec)"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct alignas(sizeof(x_t) * vec) Pack { x_t at[vec]; };

extern "C" __global__ void __launch_bounds__(THREADS)
weave(const x_t* __restrict__ x, out_t* __restrict__ out, long long total) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long image = at / (area / vec) * c * area;
    const int pixel = int(at % (area / vec)) * vec;
    Pack held[c], result[c];
#pragma unroll
    for (int k = 0; k < c; ++k) held[k] = *reinterpret_cast<const Pack*>(x + image + (long long)k * area + pixel);
#pragma unroll
    for (int i = 0; i < c * vec; ++i) result[i / vec].at[i % vec] = held[i % c].at[i / c];
    Pack* to = reinterpret_cast<Pack*>(out + image + (long long)pixel * c);
#pragma unroll
    for (int k = 0; k < c; ++k) to[k] = result[k];
}
