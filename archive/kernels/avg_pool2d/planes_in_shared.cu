/*---
op = "avg_pool2d"
note = "for planes whose rows are no whole 16-byte pieces: a block brings several neighbouring planes, which together are, into shared memory by cp.async; a thread makes some outputs of one column, adds up the window row by row, and uses the sum of a row for all outputs that cover it"
when = "kernel <= 8 and h * w * itemsize(x) <= 24576"
specialize = ["kernel", "stride", "padding", "h", "w", "oh", "ow", "planes", "lines", "bands", "tall"]
require = ["planes * h * w * itemsize(x) <= 200000"]

[knobs]
KILOBYTES = [20, 10, 40]
THREADS = [256, 128, 512]
ROWS = [4, 1, 2, 8]

[let]
unit = "16 // itemsize(x)"
planes = "unit * max(1, KILOBYTES * 1024 // (unit * h * w * itemsize(x)))"
lines = "min(ROWS, oh)"
bands = "ceil_div(oh, lines)"
tall = "(lines - 1) * stride + kernel"

[[launch]]
entry = "avg_pool_planes"
grid = ["ceil_div(n * c, planes)"]
block = ["THREADS"]
shared = "planes * h * w * itemsize(x)"
args = ["x", "out", "n * c"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int AREA = h * w, VEC = 16 / sizeof(x_t);
extern __shared__ uint4 memory[];

__device__ __forceinline__ void fetch(uint4* to, const x_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS)
avg_pool_planes(const x_t* __restrict__ x, out_t* __restrict__ out, long long all) {
    x_t* const held = reinterpret_cast<x_t*>(memory);
    const long long first = (long long)blockIdx.x * planes;
    const int own = int(min((long long)planes, all - first)), values = own * AREA;
    const x_t* const from = x + first * AREA;
    for (int piece = threadIdx.x; piece < values / VEC; piece += THREADS) fetch(memory + piece, from + piece * VEC);
    for (int at = values / VEC * VEC + threadIdx.x; at < values; at += THREADS) held[at] = from[at];
    asm volatile("cp.async.commit_group;\ncp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int task = threadIdx.x; task < own * bands * ow; task += THREADS) {
        const int col = task % ow, band = task / ow % bands, plane = task / (ow * bands);
        const int left = col * stride - padding, top = band * lines * stride - padding;
        const x_t* const corner = held + plane * AREA + top * w + left;
        bool inside[kernel];
#pragma unroll
        for (int j = 0; j < kernel; ++j) inside[j] = left + j >= 0 && left + j < w;
        float sum[lines];
#pragma unroll
        for (int o = 0; o < lines; ++o) sum[o] = 0.0f;
#pragma unroll
        for (int i = 0; i < tall; ++i) {
            const bool row_inside = top + i >= 0 && top + i < h;
            float of_row = 0.0f;
#pragma unroll
            for (int j = 0; j < kernel; ++j) {
                if (row_inside && inside[j]) of_row += float(corner[i * w + j]);
            }
#pragma unroll
            for (int o = 0; o < lines; ++o) {
                if (i >= o * stride && i < o * stride + kernel) sum[o] += of_row;
            }
        }
        out_t* const to = out + (first + plane) * (oh * ow) + band * lines * ow + col;
#pragma unroll
        for (int o = 0; o < lines; ++o) {
            if (band * lines + o < oh) to[o * ow] = out_t(sum[o] / (kernel * kernel));
        }
    }
}
