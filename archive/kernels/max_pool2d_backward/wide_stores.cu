/*---
op = "max_pool2d_backward"
note = "a thread makes a tile of grad_x in registers, as wide as 2 to 8 windows' strides and as high as one or several, from the windows that reach into it: each row of them is read once, by the widest loads, and every place of a window is compared in unrolled loops; no atomics; results are stored in accesses as wide as the loads"
when = "kernel <= 8 and stride <= 8 and h * w < 2147483648"
specialize = ["kernel", "stride", "padding", "h", "w", "oh", "ow", "per", "vin", "vout", "bands", "chunks", "total"]

[knobs]
PER = [4, 2, 8]
ROWS = [1, 2, 4]
THREADS = [128, 256]

[let]
full = "16 // itemsize(grad_out)"
per = "PER // (1 + min(1, kernel * stride // 16))"
step = "per * stride"
vin = "min(full, min(1 + (1 - min(1, w % 2)) + 2 * (1 - min(1, w % 4)) + 4 * (1 - min(1, w % 8)), 1 + (1 - min(1, step % 2)) + 2 * (1 - min(1, step % 4)) + 4 * (1 - min(1, step % 8))))"
vout = "min(full, min(per, 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8))))"
bands = "ceil_div(h, ROWS * stride)"
chunks = "ceil_div(w, per * stride)"
total = "n * c * 1 * bands * chunks"

[[launch]]
entry = "max_pool_backward"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "indices", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int D = 1, H = h, W = w, OD = 1, OH = oh, OW = ow;
constexpr int KZ = 1, SZ = 1, PZ = 0;  // kernel, stride and padding between layers
constexpr int KY = kernel, SY = stride, PY = padding;  // between rows
constexpr int TALL = ROWS * SY, WIDE = per * stride;
// Windows that reach into the tile of a thread, counted from the one that begins with it less the padding.
constexpr int ABOVE = (KY - 1 - PY) / SY;
constexpr int BELOW = (TALL - 1 + PY) / SY;
constexpr int HIGH = ABOVE + BELOW + 1;
constexpr int BEFORE = (kernel - 1 - padding) / stride;
constexpr int BEHIND = (WIDE - 1 + padding) / stride - per + 1;
using index = decltype(total + 0);

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
template <class T> struct Row { T left[BEFORE + 1]; Pack<T, vout> body[per / vout]; T right[BEHIND + 1]; };

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

template <class T> __device__ __forceinline__ void fetch(Row<T>& to, const T* __restrict__ row, int column, bool inside, T none) {
#pragma unroll
    for (int p = 0; p < BEFORE; ++p) {
        const int at = column - BEFORE + p;
        to.left[p] = inside && at >= 0 && at < OW ? row[at] : none;
    }
#pragma unroll
    for (int b = 0; b < per / vout; ++b) {
        const int at = column + b * vout;
        if (inside && at < OW) {
            to.body[b] = *reinterpret_cast<const Pack<T, vout>*>(row + at);
        } else {
#pragma unroll
            for (int e = 0; e < vout; ++e) to.body[b].at[e] = none;
        }
    }
#pragma unroll
    for (int p = 0; p < BEHIND; ++p) {
        const int at = column + per + p;
        to.right[p] = inside && at < OW ? row[at] : none;
    }
}

template <class T> __device__ __forceinline__ T value_of(const Row<T>& row, int i) {
    if (i < BEFORE) return row.left[i];
    if (i - BEFORE < per) return row.body[(i - BEFORE) / vout].at[(i - BEFORE) % vout];
    return row.right[i - BEFORE - per];
}

extern "C" __global__ void __launch_bounds__(THREADS)
max_pool_backward(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
                  grad_x_t* __restrict__ grad_x) {
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int column = int(at % chunks) * per, begin = column * stride;
    const index line = at / chunks;
    const int band = int(line % bands) * ROWS, top = band * SY;
    const long long layer = line / bands, volume = layer / D;
    const int deep = int(layer % D);
    const int base = (deep * H + top) * W + begin;
    float sum[TALL][WIDE] = {};
    const int first = deep + PZ < KZ ? 0 : (deep + PZ - KZ) / SZ + 1, last = min((deep + PZ) / SZ, OD - 1);
    for (int z = first; z <= last; ++z) {
#pragma unroll
        for (int i = 0; i < HIGH; ++i) {
            const int y = band - ABOVE + i;
            const bool inside = y >= 0 && y < OH;
            const long long from = ((volume * OD + z) * OH + (inside ? y : 0)) * OW;
            Row<grad_out_t> grads;
            Row<long long> places;
            fetch(places, indices + from, column, inside, -1ll);
            fetch(grads, grad_out + from, column, inside, grad_out_t(0.0f));
#pragma unroll
            for (int j = 0; j < BEFORE + per + BEHIND; ++j) {
                const float grad = float(value_of(grads, j));
                const int place = int(value_of(places, j)) - base;
#pragma unroll
                for (int a = 0; a < KY; ++a) {
#pragma unroll
                    for (int b = 0; b < kernel; ++b) {
                        const int y_in = (i - ABOVE) * SY - PY + a, x_in = (j - BEFORE) * stride - padding + b;
                        if (y_in < 0 || y_in >= TALL || x_in < 0 || x_in >= WIDE) continue;
                        sum[y_in][x_in] += place == y_in * W + x_in ? grad : 0.0f;
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < TALL; ++r) {
        if (top + r >= H) continue;
        grad_x_t* to = grad_x + (layer * H + top + r) * W;
#pragma unroll
        for (int v = 0; v < WIDE; v += vin) {
            if (begin + v >= W) continue;
            Pack<grad_x_t, vin> result;
#pragma unroll
            for (int e = 0; e < vin; ++e) result.at[e] = grad_x_t(sum[r][v + e]);
            write(to + begin + v, result);
        }
    }
}
