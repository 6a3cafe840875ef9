/*---
op = "to_channels_last"
note = "few channels: a thread reads as many pixels as fill 16 bytes from each, and gives them to its warp in shared memory in the order of the result, which leaves in stores that lie side by side"
when = "c <= 8"
specialize = ["c", "vec", "area"]

[knobs]
THREADS = [128, 256]
PACKS = [2, 1, 4]

[let]
area = "h * w"
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"

[[launch]]
entry = "weave"
grid = ["ceil_div(n * (area // vec), THREADS * PACKS)"]
block = ["THREADS"]
shared = "THREADS * c * vec * itemsize(x)"
args = ["x", "out", "n * (area // vec)"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct alignas(sizeof(x_t) * vec) Pack { x_t at[vec]; };
extern __shared__ uint4 memory[];

extern "C" __global__ void __launch_bounds__(THREADS)
weave(const x_t* __restrict__ x, out_t* __restrict__ out, long long total) {
    Pack* const mine = reinterpret_cast<Pack*>(memory) + threadIdx.x / 32 * 32 * c;  // of this warp
    const int lane = threadIdx.x % 32;
    const long long first = (long long)blockIdx.x * (THREADS * PACKS) + threadIdx.x / 32 * 32 * PACKS;
    Pack held[PACKS][c];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const long long at = first + p * 32 + lane;
        const x_t* from = x + at / (area / vec) * (c * (long long)area) + at % (area / vec) * vec;
#pragma unroll
        for (int k = 0; k < c; ++k) {
            if (at < total) held[p][k] = *reinterpret_cast<const Pack*>(from + (long long)k * area);
        }
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const long long begin = first + p * 32;  // the warp's 32 packs of pixels follow one another in the result
        const int count = int(min(32ll, total - begin)) * c;
        __syncwarp();
        if (begin + lane < total) {
#pragma unroll
            for (int k = 0; k < c; ++k) {
                Pack result;
#pragma unroll
                for (int e = 0; e < vec; ++e) result.at[e] = held[p][(k * vec + e) % c].at[(k * vec + e) / c];
                mine[lane * c + k] = result;
            }
        }
        __syncwarp();
        Pack* const to = reinterpret_cast<Pack*>(out) + begin * c;
#pragma unroll
        for (int k = 0; k < c; ++k) {
            if (k * 32 + lane < count) to[k * 32 + lane] = mine[k * 32 + lane];
        }
    }
}
