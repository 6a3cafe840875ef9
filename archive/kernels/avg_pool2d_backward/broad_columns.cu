/*---
op = "avg_pool2d_backward"
note = "a thread walks down as many columns of a band of grad_x as fill 8 bytes and the width allows; it adds up the windows of a row of grad_out that hold its column once, and uses that for all rows of the band that they reach"
when = "kernel <= 8 and stride <= 8 and h * w < 1073741824"
specialize = ["kernel", "stride", "padding", "h", "w", "oh", "ow", "wide", "bands", "chunks", "total", "steps"]

[knobs]
TALL = [8, 4, 16]
THREADS = [256, 128]

[let]
wide = "min(8 // itemsize(grad_x), 1 + (1 - min(1, w % 2)) + 2 * (1 - min(1, w % 4)))"
steps = "max(1, TALL // stride)"
bands = "ceil_div(h, steps * stride)"
chunks = "w // wide"
total = "n * c * bands * chunks"

[[launch]]
entry = "walk"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int HEIGHT = steps * stride, AREA = kernel * kernel;
// Rows of grad_out that reach into a band, counted from the one whose window begins with it less the padding.
constexpr int ABOVE = (kernel - 1 - padding) / stride, BELOW = (HEIGHT - 1 + padding) / stride, ROWS = ABOVE + BELOW + 1;
constexpr int ACROSS = (kernel + wide - 2) / stride + 1;  // windows that may hold one of the thread's columns
using index = decltype(total + 0);
struct alignas(sizeof(grad_x_t) * wide) Pair { grad_x_t at[wide]; };

// 16-bit results need no digit that the product with a rounded quotient lacks.
__device__ __forceinline__ grad_x_t mean_of(float sum) {
    if constexpr (sizeof(grad_x_t) == 2 || (AREA & (AREA - 1)) == 0) return grad_x_t(sum * (1.0f / AREA));
    else return grad_x_t(sum / AREA);
}

extern "C" __global__ void __launch_bounds__(THREADS)
walk(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x) {
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const index line = at / chunks;
    const int x = int(at % chunks) * wide, band = int(line % bands);
    const long long plane = line / bands;
    const int last = (x + padding + wide - 1) / stride, into = x + padding - last * stride;
    const grad_out_t* const from = grad_out + plane * (oh * ow) + last;
    bool inside[ACROSS];
#pragma unroll
    for (int t = 0; t < ACROSS; ++t) inside[t] = last - t >= 0 && last - t < ow && into + wide - 1 + t * stride >= 0;
    float sums[HEIGHT][wide] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = band * steps - ABOVE + r;
        grad_out_t grads[ACROSS];
#pragma unroll
        for (int t = 0; t < ACROSS; ++t) {
            grads[t] = grad_out_t(0.0f);
            if (i >= 0 && i < oh && inside[t]) grads[t] = from[i * ow - t];
        }
#pragma unroll
        for (int v = 0; v < wide; ++v) {
            float some = 0.0f;
#pragma unroll
            for (int t = 0; t < ACROSS; ++t) {
                const int off = into + v + t * stride;  // of the column from the window's first
                if (off >= 0 && off < kernel) some += float(grads[t]);
            }
#pragma unroll
            for (int a = 0; a < kernel; ++a) {
                const int y = (r - ABOVE) * stride - padding + a;
                if (y >= 0 && y < HEIGHT) sums[y][v] += some;
            }
        }
    }
    grad_x_t* const to = grad_x + plane * (h * w) + x;
#pragma unroll
    for (int y = 0; y < HEIGHT; ++y) {
        if (band * HEIGHT + y >= h) break;
        Pair result;
#pragma unroll
        for (int v = 0; v < wide; ++v) {
            result.at[v] = mean_of(sums[y][v]);
        }
        *reinterpret_cast<Pair*>(to + (band * HEIGHT + y) * w) = result;
    }
}
