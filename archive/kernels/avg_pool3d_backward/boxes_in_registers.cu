/*---
op = "avg_pool3d_backward"
note = "a thread makes a box of grad_x in registers, one or two strides deep and high and some windows wide: it adds up the windows of a row of grad_out along the row once, then those sums over rows, then over layers; loops over the window are unrolled"
when = "kernel <= 5 and stride <= 4 and d * h * w < 1073741824"
specialize = ["kernel", "stride", "padding", "d", "h", "w", "od", "oh", "ow", "deep", "high", "per", "vin", "vout", "total", "chunks", "bands", "floors"]

[knobs]
PER = [2, 1, 4]
STEPS = [2, 4]
THREADS = [128, 256]

[let]
deep = "max(1, 2 // stride)"
high = "max(1, STEPS // stride)"
per = "PER * max(1, 2 // stride)"
step = "per * stride"
vin = "min(16 // itemsize(grad_x), min(1 + (1 - min(1, w % 2)) + 2 * (1 - min(1, w % 4)) + 4 * (1 - min(1, w % 8)), 1 + (1 - min(1, step % 2)) + 2 * (1 - min(1, step % 4)) + 4 * (1 - min(1, step % 8))))"
vout = "min(per, 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)))"
chunks = "ceil_div(w, step)"
bands = "ceil_div(h, high * stride)"
floors = "ceil_div(d, deep * stride)"
total = "n * c * floors * bands * chunks"

[[launch]]
entry = "add_boxes"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int DEEP = deep * stride, HIGH = high * stride, WIDE = per * stride, BOX = kernel * kernel * kernel;
// Windows that reach into the box: of those that begin before it, less the padding, and in all.
constexpr int BEFORE = (kernel - 1 - padding) / stride;
constexpr int reach(int size) { return BEFORE + (size - 1 + padding) / stride + 1; }
constexpr int LAYERS = reach(DEEP), ROWS = reach(HIGH), COLUMNS = reach(WIDE);
using index = decltype(total + 0);
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };
using Out = Pack<grad_x_t, vin>;

// Whether the window at `window`, counted from the first that reaches into the box, holds the place of the box.
constexpr bool holds(int window, int place) {
    const int from = (window - BEFORE) * stride - padding;
    return place >= from && place < from + kernel;
}

// 16-bit results need no digit that the product with a rounded reciprocal lacks. For the others the quotient is put
// right by its remainder, which is NaN for infinite sums and then left out.
__device__ __forceinline__ grad_x_t mean_of(float sum) {
    const float quotient = sum * (1.0f / BOX);
    if constexpr (sizeof(grad_x_t) == 2 || (BOX & (BOX - 1)) == 0) return grad_x_t(quotient);
    const float rest = fmaf(-quotient, float(BOX), sum);
    return grad_x_t(rest == rest ? fmaf(rest, 1.0f / BOX, quotient) : quotient);
}

// The sums over the windows of a row, for each column of the box.
__device__ __forceinline__ void add_row(float (&sums)[WIDE], const grad_out_t* __restrict__ row, int column,
                                        bool inside) {
    grad_out_t grads[COLUMNS];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) grads[j] = grad_out_t(0.0f);
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
        const int at = column - BEFORE + j;
        if (j >= BEFORE && j < BEFORE + per && vout > 1) {
            if ((j - BEFORE) % vout == 0 && inside && at < ow) {
                const auto some = *reinterpret_cast<const Pack<grad_out_t, vout>*>(row + at);
#pragma unroll
                for (int e = 0; e < vout; ++e) {
                    if (j + e < COLUMNS) grads[j + e] = some.at[e];
                }
            }
        } else if (inside && at >= 0 && at < ow) {
            grads[j] = row[at];
        }
    }
#pragma unroll
    for (int x = 0; x < WIDE; ++x) {
        sums[x] = 0.0f;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            if (holds(j, x)) sums[x] += float(grads[j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_boxes(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x) {
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const index line = at / chunks, storey = line / bands;
    const int column = int(at % chunks) * per, band = int(line % bands) * high, floor = int(storey % floors) * deep;
    const long long volume = storey / floors;
    const grad_out_t* const from = grad_out + volume * (od * oh * ow);
    float sums[DEEP][HIGH][WIDE] = {};
#pragma unroll
    for (int i = 0; i < LAYERS; ++i) {
        const int z = floor - BEFORE + i;
        float layer[HIGH][WIDE] = {};
#pragma unroll
        for (int j = 0; j < ROWS; ++j) {
            const int y = band - BEFORE + j;
            const bool inside = z >= 0 && z < od && y >= 0 && y < oh;
            float row[WIDE];
            add_row(row, from + (inside ? z * oh + y : 0) * ow, column, inside);
#pragma unroll
            for (int b = 0; b < HIGH; ++b) {
#pragma unroll
                for (int x = 0; x < WIDE; ++x) {
                    if (holds(j, b)) layer[b][x] += row[x];
                }
            }
        }
#pragma unroll
        for (int a = 0; a < DEEP; ++a) {
#pragma unroll
            for (int b = 0; b < HIGH; ++b) {
#pragma unroll
                for (int x = 0; x < WIDE; ++x) {
                    if (holds(i, a)) sums[a][b][x] += layer[b][x];
                }
            }
        }
    }
    const int begin = column * stride;
#pragma unroll
    for (int a = 0; a < DEEP; ++a) {
#pragma unroll
        for (int b = 0; b < HIGH; ++b) {
            const int z = floor * stride + a, y = band * stride + b;
            if (z >= d || y >= h) continue;
            // Counted in stores throughout: the compiler splits a store at an address that is counted in elements.
            Out* const to = reinterpret_cast<Out*>(grad_x) + ((volume * d + z) * h + y) * (w / vin) + begin / vin;
#pragma unroll
            for (int x = 0; x < WIDE; x += vin) {
                if (begin + x >= w) continue;
                Out result;
#pragma unroll
                for (int e = 0; e < vin; ++e) result.at[e] = mean_of(sums[a][b][x + e]);
                to[x / vin] = result;
            }
        }
    }
}
