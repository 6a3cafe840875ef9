/*---
op = "max_pool2d"
note = "a thread makes 2 to 8 neighbouring outputs in one or several rows from stretches of the input that it reads once, by the widest loads the row allows, all of up to four rows before their first use; the loops over the window are unrolled; results are stored in accesses as wide as the loads"
when = "kernel <= 8 and stride <= 8 and h * w < 2147483648"
specialize = ["kernel", "stride", "padding", "h", "w", "oh", "ow", "per", "vin", "vout", "bands", "chunks", "total"]

[knobs]
PER = [8, 2, 4]
ROWS = [1, 2, 4]
THREADS = [128, 256]

[let]
full = "16 // itemsize(x)"
per = "PER // (1 + min(1, kernel * stride // 16))"
step = "per * stride"
vin = "min(full, min(1 + (1 - min(1, w % 2)) + 2 * (1 - min(1, w % 4)) + 4 * (1 - min(1, w % 8)), 1 + (1 - min(1, step % 2)) + 2 * (1 - min(1, step % 4)) + 4 * (1 - min(1, step % 8))))"
vout = "min(full, min(per, 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8))))"
bands = "ceil_div(oh, ROWS)"
chunks = "ceil_div(ow, per)"
total = "n * c * 1 * bands * chunks"

[[launch]]
entry = "max_pool"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "indices"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int D = 1, H = h, W = w, OD = 1, OH = oh, OW = ow;
constexpr int KZ = 1, SZ = 1, PZ = 0;  // kernel, stride and padding between layers
constexpr int KY = kernel, SY = stride, PY = padding;  // between rows
constexpr int TALL = (ROWS - 1) * SY + KY, TOGETHER = TALL < 4 ? TALL : 4, SPAN = (per - 1) * stride + kernel;
constexpr int RIGHT = SPAN - padding, EXTRA = RIGHT % vin, PACKS = RIGHT / vin + (EXTRA > 2);
constexpr int SINGLE = EXTRA > 2 ? 0 : EXTRA;
using index = decltype(total + 0);

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
// What the outputs of a thread need of one row: before, in and behind the stretch that begins where they do.
struct Row { x_t left[padding + 1]; Pack<x_t, vin> body[PACKS + 1]; x_t right[SINGLE + 1]; };

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

__device__ __forceinline__ void fetch(Row& to, const x_t* __restrict__ row, int begin, bool inside) {
    const x_t none = x_t(-INFINITY);
#pragma unroll
    for (int p = 0; p < padding; ++p) {
        const int col = begin - padding + p;
        to.left[p] = inside && col >= 0 && col < W ? row[col] : none;
    }
#pragma unroll
    for (int b = 0; b < PACKS; ++b) {
        const int col = begin + b * vin;
        if (inside && col < W) {
            to.body[b] = *reinterpret_cast<const Pack<x_t, vin>*>(row + col);
        } else {
#pragma unroll
            for (int e = 0; e < vin; ++e) to.body[b].at[e] = none;
        }
    }
#pragma unroll
    for (int p = 0; p < SINGLE; ++p) {
        const int col = begin + PACKS * vin + p;
        to.right[p] = inside && col < W ? row[col] : none;
    }
}

__device__ __forceinline__ float value_of(const Row& row, int i) {
    if (i < padding) return float(row.left[i]);
    if (i - padding < PACKS * vin) return float(row.body[(i - padding) / vin].at[(i - padding) % vin]);
    return float(row.right[i - padding - PACKS * vin]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
max_pool(const x_t* __restrict__ x, out_t* __restrict__ out, long long* __restrict__ indices) {
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int column = int(at % chunks) * per, begin = column * stride;
    const index line = at / chunks;
    const int top = int(line % bands) * ROWS;
    const long long layer = line / bands;
    const int deep = int(layer % OD);
    const x_t* volume = x + layer / OD * ((long long)D * H * W);
    float most[ROWS][per];
    int place[ROWS][per];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int v = 0; v < per; ++v) {
            most[r][v] = -INFINITY;
            place[r][v] = (max(deep * SZ - PZ, 0) * H + max((top + r) * SY - PY, 0)) * W + max(begin + v * stride - padding, 0);
        }
    }
    for (int z = 0; z < KZ; ++z) {
        const int depth = deep * SZ - PZ + z;
        if (depth < 0 || depth >= D) continue;
#pragma unroll
        for (int first = 0; first < TALL; first += TOGETHER) {
            Row rows[TOGETHER];
#pragma unroll
            for (int t = 0; t < TOGETHER; ++t) {
                const int y = top * SY - PY + first + t;
                const bool inside = first + t < TALL && y >= 0 && y < H;
                fetch(rows[t], volume + ((long long)depth * H + (inside ? y : 0)) * W, begin, inside);
            }
#pragma unroll
            for (int t = 0; t < TOGETHER; ++t) {
                const int below = first + t;
                const int here = (depth * H + top * SY - PY + below) * W + begin - padding;
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    if (below < r * SY || below >= r * SY + KY) continue;
#pragma unroll
                    for (int v = 0; v < per; ++v) {
#pragma unroll
                        for (int j = 0; j < kernel; ++j) {
                            const float value = value_of(rows[t], v * stride + j);
                            // NaN is greater than every number, and of several NaN the last counts, as in PyTorch.
                            if (value > most[r][v] || value != value) {
                                most[r][v] = value, place[r][v] = here + v * stride + j;
                            }
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (top + r >= OH) continue;
        const long long to = (layer * OH + top + r) * OW;
#pragma unroll
        for (int v = 0; v < per; v += vout) {
            if (column + v >= OW) continue;
            Pack<out_t, vout> result;
            Pack<long long, vout> places;
#pragma unroll
            for (int e = 0; e < vout; ++e) result.at[e] = out_t(most[r][v + e]), places.at[e] = place[r][v + e];
            write(out + to + column + v, result);
            write(indices + to + column + v, places);
        }
    }
}
