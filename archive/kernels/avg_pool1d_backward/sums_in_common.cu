/*---
op = "avg_pool1d_backward"
note = "for long kernels and small strides: neighbouring places have most of their windows in common; a block holds rows of grad_out in shared memory, a stride apart with zeros between and around them, and a thread adds up what its places have in common once, then what each has besides, from both ends; nothing is subtracted"
when = "kernel >= 4 and kernel <= 64 and stride <= 4 and l < 16777216"
specialize = ["kernel", "stride", "padding", "l", "ol", "tiles", "span", "rows", "pieces", "line", "vin", "vout"]
require = ["PER <= kernel"]

[knobs]
PER = [4, 8]
THREADS = [256, 128]
ITEMS = [3, 2, 4]

[let]
tiles = "ceil_div(l, PER)"
span = "min(tiles, THREADS * ITEMS)"
pieces = "ceil_div(tiles, span)"
rows = "max(1, THREADS * ITEMS // span)"
line = "4 * ceil_div(span * PER + kernel - 1, 4) + 8"
vin = "max(1, (1 + (1 - min(1, ol % 2)) + 2 * (1 - min(1, ol % 4))) * (2 - min(2, stride)))"
vout = "1 + (1 - min(1, l % 2)) + 2 * (1 - min(1, l % 4))"

[[launch]]
entry = "slide"
grid = ["ceil_div(n * c, rows) * pieces"]
block = ["THREADS"]
shared = "4 * rows * line"
args = ["grad_out", "grad_x", "n * c"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Place x has the windows from x + padding - kernel + 1 to x + padding, of those at multiples of the stride. What is at
// j there is at j + SHIFT in shared memory, with a multiple of 4 as SHIFT, so that 4 values go there as one. The
// windows of place 0 begin at SKIP.
constexpr int AHEAD = kernel - 1 - padding, SHIFT = (AHEAD + 3) / 4 * 4, SKIP = SHIFT - AHEAD, LOADS = 4;
constexpr int NEED = (SKIP + PER + kernel - 1 + 3) / 4;  // float4 under the windows of a tile
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };
using Out = Pack<grad_x_t, vout>;
extern __shared__ float4 memory[];

// 16-bit results need no digit that the product with a rounded reciprocal lacks. For the others the quotient is put
// right by its remainder, which is NaN for infinite sums and then left out.
__device__ __forceinline__ grad_x_t mean_of(float sum) {
    const float quotient = sum * (1.0f / kernel);
    if constexpr (sizeof(grad_x_t) == 2 || (kernel & (kernel - 1)) == 0) return grad_x_t(quotient);
    const float rest = fmaf(-quotient, float(kernel), sum);
    return grad_x_t(rest == rest ? fmaf(rest, 1.0f / kernel, quotient) : quotient);
}

extern "C" __global__ void __launch_bounds__(THREADS)
slide(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long all) {
    const long long first = (long long)(blockIdx.x / pieces) * rows;
    const int own = int(min((long long)rows, all - first)), begin = int(blockIdx.x % pieces) * span * PER;
    float* const held = reinterpret_cast<float*>(memory);
    // The line of a row holds what is from begin - SHIFT on, in packs as aligned as the rows.
    constexpr int PACKS = line / vin;
    for (int base = threadIdx.x; base < own * PACKS; base += THREADS * LOADS) {
        Pack<grad_out_t, vin> some[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = base + i * THREADS, j = begin - SHIFT + at % PACKS * vin;
#pragma unroll
            for (int e = 0; e < vin; ++e) some[i].at[e] = grad_out_t(0.0f);
            if (at < own * PACKS && j >= 0 && j % stride == 0 && j / stride < ol) {
                const grad_out_t* const from = grad_out + (first + at / PACKS) * ol + j / stride;
                some[i] = *reinterpret_cast<const Pack<grad_out_t, vin>*>(from);
            }
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = base + i * THREADS;
            if (at >= own * PACKS) continue;
            float* const to = held + at / PACKS * line + at % PACKS * vin;
            Pack<float, vin> wider;
#pragma unroll
            for (int e = 0; e < vin; ++e) wider.at[e] = float(some[i].at[e]);
            *reinterpret_cast<Pack<float, vin>*>(to) = wider;
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < own * span; at += THREADS) {
        const int x = begin + at % span * PER;
        if (x >= l) continue;
        float near[NEED * 4];
#pragma unroll
        for (int v = 0; v < NEED; ++v) {
            const float4 four = memory[at / span * (line / 4) + at % span * (PER / 4) + v];
            near[4 * v] = four.x, near[4 * v + 1] = four.y, near[4 * v + 2] = four.z, near[4 * v + 3] = four.w;
        }
        const float* const windows = near + SKIP;  // place i of the tile has i to i + kernel - 1
        float sums[PER], common = 0.0f, some = 0.0f;
#pragma unroll
        for (int j = PER - 1; j < kernel; ++j) common += windows[j];
        sums[PER - 1] = common;
#pragma unroll
        for (int i = PER - 2; i >= 0; --i) {
            some += windows[i];
            sums[i] = common + some;
        }
        some = 0.0f;
#pragma unroll
        for (int i = 1; i < PER; ++i) {
            some += windows[kernel - 1 + i];
            sums[i] += some;
        }
        // Counted in stores throughout: the compiler splits a store at an address that is counted in elements.
        Out* const to = reinterpret_cast<Out*>(grad_x) + (first + at / span) * (l / vout) + x / vout;
#pragma unroll
        for (int i = 0; i < PER; i += vout) {
            if (x + i >= l) break;
            Out result;
#pragma unroll
            for (int e = 0; e < vout; ++e) result.at[e] = mean_of(sums[i + e]);
            to[i / vout] = result;
        }
    }
}
