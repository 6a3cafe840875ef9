/*---
op = "scatter_add_backward"
note = "slices of columns, one after the other for all rows of the result, each small enough that the L2 cache keeps it of all rows of the gradient while the result passes through as a stream; a thread takes 16 bytes of several rows, whose indices and then values are all on the way at once; where rows are no multiple of 16 bytes, two neighbouring pieces of the gradient are shifted into an aligned one of the result, and the few values round those are of one thread each"
specialize = ["dim", "aligned", "packs", "lanes", "groups"]

[knobs]
SLICE = [8, 4, 16]
ROWS = [4, 2, 8]
BLOCK = [256, 128, 512]

[let]
full = "16 // itemsize(grad_out)"
aligned = "1 - min(1, dim % full)"
packs = "ceil_div(dim, full)"
often = "min(1, count // (2 * rows))"
fitting = "often * min(ceil_div(rows * dim * itemsize(grad_out), SLICE * 1048576), ceil_div(packs, 32))"
wanted = "max(1, ceil_div(packs, 256), fitting)"
lanes = "max(16 - 8 * aligned, 8 * ceil_div(packs, 8 * wanted))"
slices = "ceil_div(packs, lanes)"
groups = "max(1, BLOCK // lanes)"
row_blocks = "ceil_div(count, groups * ROWS)"

[[launch]]
entry = "gather_slices"
grid = ["slices * row_blocks"]
block = ["lanes * groups"]
args = ["grad_out", "indices", "grad_src", "count", "rows * dim", "row_blocks"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(grad_out_t), SIZE = sizeof(grad_out_t), SHIFT = SIZE == 4 ? 2 : 3;

// 16 of 32 neighbouring bytes.
__device__ __forceinline__ uint4 shifted(const uint4& low, const uint4& high, int bytes) {
    unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 7; ++i) words[i] = bytes & 4 ? words[i + 1] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = bytes & 8 ? words[i + 2] : words[i];
    if constexpr (SIZE < 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], (bytes & 2) * 8);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

extern "C" __global__ void __launch_bounds__(lanes * groups)
gather_slices(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
              grad_src_t* __restrict__ grad_src, long long count, long long total, int row_blocks) {
    const int slice = blockIdx.x / row_blocks, lane = threadIdx.x % lanes, pack = slice * lanes + lane;
    const long long first = (long long)(blockIdx.x % row_blocks) * (groups * ROWS) + threadIdx.x / lanes;
    const uint4* const sources = reinterpret_cast<const uint4*>(grad_out);
    uint4* const results = reinterpret_cast<uint4*>(grad_src);
    long long from[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) from[k] = first + k * groups < count ? indices[first + k * groups] : 0;
    if constexpr (aligned) {
        uint4 held[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            if (first + k * groups < count && pack < packs) held[k] = sources[from[k] * packs + pack];
        }
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const long long row = first + k * groups;
            if (row < count && pack < packs) __stcs(results + row * packs + pack, held[k]);
        }
    } else {
        uint4 low[ROWS], high[ROWS];
        grad_out_t single[ROWS];
        int head[ROWS], column[ROWS];  // values before the first aligned piece; one in no such piece, or -1
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const long long row = first + k * groups;
            head[k] = min(dim, -int(row * dim) & (VEC - 1));
            const int whole = row < count ? (dim - head[k]) / VEC : 0, tail = (dim - head[k]) % VEC;
            column[k] = lane < head[k] ? lane : lane >= VEC && lane < VEC + tail ? dim - tail + lane - VEC : -1;
            if (slice > 0 || row >= count) column[k] = -1;
            if (column[k] >= 0) single[k] = grad_out[from[k] * dim + column[k]];
            from[k] = from[k] * dim + head[k] + pack * VEC;
            if (pack >= whole) {
                from[k] = -1;
                continue;
            }
            const long long piece = from[k] >> SHIFT;
            if ((piece + 2) * VEC <= total) {
                low[k] = sources[piece], high[k] = sources[piece + 1];
            } else {  // at the end of the gradient
                alignas(16) grad_out_t some[2 * VEC];
#pragma unroll
                for (int e = 0; e < 2 * VEC; ++e) {
                    some[e] = piece * VEC + e < total ? grad_out[piece * VEC + e] : grad_out_t(0.0f);
                }
                low[k] = *reinterpret_cast<const uint4*>(some), high[k] = *reinterpret_cast<const uint4*>(some + VEC);
            }
        }
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const long long row = first + k * groups;
            if (column[k] >= 0) grad_src[row * dim + column[k]] = single[k];
            if (from[k] < 0) continue;
            const uint4 result = shifted(low[k], high[k], (int(from[k]) & (VEC - 1)) * SIZE);
            __stcs(results + ((row * dim + head[k]) >> SHIFT) + pack, result);
        }
    }
}
