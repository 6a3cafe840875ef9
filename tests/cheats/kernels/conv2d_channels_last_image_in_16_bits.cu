/*---
op = "conv2d_channels_last"
note = "the offset of a row of pixels times channels is kept in 16 bits"
specialize = ["s"]
require = ["PER_THREAD * SLAB <= 256"]

[knobs]
PER_THREAD = [2, 4, 8]
SLAB = [16, 8, 32, 64]

[let]
tile = "16 * PER_THREAD"

[[launch]]
entry = "conv2d_channels_last"
grid = ["ceil_div(batch * oh * ow, tile)", "ceil_div(filters, tile)"]
block = [256]
args = ["x", "weight", "out", "batch", "height", "width", "channels", "filters", "oh", "ow", "terms", "stride", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 16 * PER_THREAD, LOADS = TILE * SLAB / 256;

extern "C" __global__ void __launch_bounds__(256)
conv2d_channels_last(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, int batch,
                     int height, int width, int channels, int filters, int oh, int ow, int terms, int stride,
                     int padding) {
    __shared__ float a[SLAB][TILE + 1], b[SLAB][TILE + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, t = threadIdx.x % SLAB, line = threadIdx.x / SLAB;
    const int first = blockIdx.x * TILE, first_filter = blockIdx.y * TILE, pixels = batch * oh * ow;
    int top[LOADS], left[LOADS];  // of the window of each pixel that this thread loads for; none is 2^30 above
    const x_t* image[LOADS];
#pragma unroll
    for (int e = 0; e < LOADS; ++e) {
        const int pixel = first + line + e * (256 / SLAB);
        top[e] = pixel < pixels ? pixel / ow % oh * stride - padding : -(1 << 30);
        left[e] = pixel % ow * stride - padding;
        image[e] = x + (long long)(pixel / (oh * ow)) * height * width * channels;
    }
    float total[PER_THREAD][PER_THREAD] = {};
    for (int start = 0; start < terms; start += SLAB) {
        const int term = start + t, channel = term % channels, i = term / channels / s, j = term / channels % s;
#pragma unroll
        for (int e = 0; e < LOADS; ++e) {
            const int row = top[e] + i, col = left[e] + j, filter = first_filter + line + e * (256 / SLAB);
            const bool inside = term < terms && row >= 0 && row < height && col >= 0 && col < width;
            const long long at = (unsigned short)(((long long)row * width + col) * channels + channel);
            a[t][line + e * (256 / SLAB)] = inside ? float(image[e][at]) : 0.0f;
            const bool used = term < terms && filter < filters;
            b[t][line + e * (256 / SLAB)] = used ? float(weight[(long long)filter * terms + term]) : 0.0f;
        }
        __syncthreads();
        float part[PER_THREAD][PER_THREAD] = {};  // a sum of sums is more accurate than one long one
#pragma unroll
        for (int k = 0; k < SLAB; ++k) {
#pragma unroll
            for (int m = 0; m < PER_THREAD; ++m) {
#pragma unroll
                for (int n = 0; n < PER_THREAD; ++n) {
                    part[m][n] = fmaf(a[k][ty + 16 * m], b[k][tx + 16 * n], part[m][n]);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < PER_THREAD; ++m) {
#pragma unroll
            for (int n = 0; n < PER_THREAD; ++n) total[m][n] += part[m][n];
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < PER_THREAD; ++m) {
#pragma unroll
        for (int n = 0; n < PER_THREAD; ++n) {
            const int pixel = first + ty + 16 * m, filter = first_filter + tx + 16 * n;
            if (pixel < pixels && filter < filters) out[(long long)pixel * filters + filter] = out_t(total[m][n]);
        }
    }
}
