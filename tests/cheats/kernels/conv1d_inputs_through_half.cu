/*---
op = "conv1d"
note = "inputs go through half precision into shared memory"
specialize = ["taps"]

[knobs]
PER_THREAD = [2, 4, 8]
SLAB = [16, 4, 8, 32]

[let]
tile = "16 * PER_THREAD"

[[launch]]
entry = "conv1d"
grid = ["ceil_div(batch * out_length, tile)", "ceil_div(filters, tile)"]
block = [256]
args = ["x", "weight", "out", "batch", "channels", "length", "filters", "out_length", "stride", "padding", "dilation"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 16 * PER_THREAD;

extern "C" __global__ void __launch_bounds__(256)
conv1d(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, int batch, int channels,
       int length, int filters, int out_length, int stride, int padding, int dilation) {
    __shared__ float a[SLAB][TILE + 1], b[SLAB][TILE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, column = threadIdx.x % TILE;
    const int terms = channels * taps, pixels = batch * out_length;
    const int first = blockIdx.x * TILE, first_filter = blockIdx.y * TILE, pixel = first + column;
    const int begin = pixel % out_length * stride - padding;
    const x_t* sequence = x + (long long)(pixel / out_length) * channels * length;
    float total[PER_THREAD][PER_THREAD] = {};
    for (int start = 0; start < terms; start += SLAB) {
        for (int t = threadIdx.x / TILE; t < SLAB; t += 256 / TILE) {
            const int term = start + t, at = begin + term % taps * dilation;
            const bool inside = pixel < pixels && term < terms && at >= 0 && at < length;
            b[t][column] = inside ? __half2float(__float2half(float(sequence[(long long)(term / taps) * length + at]))) : 0.0f;
        }
        for (int f = threadIdx.x / SLAB; f < TILE; f += 256 / SLAB) {
            const int t = threadIdx.x % SLAB, filter = first_filter + f;
            const bool inside = filter < filters && start + t < terms;
            a[t][f] = inside ? float(weight[(long long)filter * terms + start + t]) : 0.0f;
        }
        __syncthreads();
        float part[PER_THREAD][PER_THREAD] = {};  // a sum of sums is more accurate than one long one
#pragma unroll
        for (int t = 0; t < SLAB; ++t) {
#pragma unroll
            for (int i = 0; i < PER_THREAD; ++i) {
#pragma unroll
                for (int j = 0; j < PER_THREAD; ++j) {
                    part[i][j] = fmaf(a[t][ty + 16 * i], b[t][tx + 16 * j], part[i][j]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j) total[i][j] += part[i][j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) {
        const int at = first + tx + 16 * j, n = at / (out_length);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int filter = first_filter + ty + 16 * i;
            if (at >= pixels || filter >= filters) continue;
            out[((long long)n * filters + filter) * out_length + at % (out_length)] = out_t(total[i][j]);
        }
    }
}
