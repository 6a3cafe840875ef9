/*---
op = "l2_norm"
note = "no barrier: a warp, or a part of it for short rows, has several rows or a long one, and about eight 16-byte loads of each lane are in flight; rows that begin off a multiple of 16 bytes give their first and last values to single lanes; the norms of a warp leave in one store"
when = "cols * itemsize(x) >= 128"
specialize = ["cols", "lanes", "packs", "pieces", "each"]

[knobs]
IN_FLIGHT = [8, 4, 12]
WARPS = [4, 2, 8]

[let]
vec = "16 // itemsize(x)"
packs = "cols // vec"
lanes = "8 + 8 * min(1, packs // 16) + 16 * min(1, packs // 32)"
pieces = "min(IN_FLIGHT, ceil_div(packs, lanes))"
each = "min(8, max(1, IN_FLIGHT // pieces))"

[[launch]]
entry = "l2_norm_rows"
grid = ["ceil_div(rows, WARPS * (32 // lanes) * each)"]
block = ["32 * WARPS"]
args = ["x", "out", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), GROUPS = 32 / lanes, STEP = lanes * pieces;
struct alignas(16) Pack { x_t at[VEC]; };

__device__ __forceinline__ float squares(const Pack& pack) {
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < VEC; ++e) sum = fmaf(float(pack.at[e]), float(pack.at[e]), sum);
    return sum;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
l2_norm_rows(const x_t* __restrict__ x, out_t* __restrict__ out, int rows) {
    const int lane = threadIdx.x % lanes, group = threadIdx.x % 32 / lanes;
    // A group has the rows first, first + GROUPS, first + 2 * GROUPS and so on.
    const long long first = ((long long)blockIdx.x * WARPS + threadIdx.x / 32) * (GROUPS * each) + group;
    float sums[each] = {};
    const Pack* bodies[each];
    int counts[each];
#pragma unroll
    for (int r = 0; r < each; ++r) {
        const long long row = first + r * GROUPS;
        const x_t* from = x + row * cols;
        const bool inside = row < rows;
        int head = 0;
        if constexpr (cols % VEC != 0) head = int((VEC - row * cols % VEC) % VEC);
        bodies[r] = reinterpret_cast<const Pack*>(from + head);
        counts[r] = inside ? (cols - head) / VEC : 0;
        if constexpr (cols % VEC != 0) {
            const int tail = head + (cols - head) / VEC * VEC + lane;  // at most 7 values are left
            float ends = 0.0f;
            if (inside && lane < head) ends = float(from[lane]) * float(from[lane]);
            if (inside && tail < cols) ends = fmaf(float(from[tail]), float(from[tail]), ends);
            sums[r] = ends;
        }
    }
#pragma unroll 1
    for (int begin = lane; begin < packs; begin += STEP) {
        Pack held[each][pieces];
#pragma unroll
        for (int r = 0; r < each; ++r) {
#pragma unroll
            for (int p = 0; p < pieces; ++p) {
                if (begin + p * lanes < counts[r]) held[r][p] = bodies[r][begin + p * lanes];
                else held[r][p] = Pack{};
            }
        }
#pragma unroll
        for (int r = 0; r < each; ++r) {
            float some = 0.0f;
#pragma unroll
            for (int p = 0; p < pieces; ++p) some += squares(held[r][p]);
            sums[r] += some;
        }
    }
    float own = 0.0f;
#pragma unroll
    for (int r = 0; r < each; ++r) {
        float sum = sums[r];
#pragma unroll
        for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == r) own = sum;
    }
    const long long row = first + lane * GROUPS;
    if (lane < each && row < rows) out[row] = out_t(sqrtf(own));
}
