/*---
op = "dilated_conv2d"
note = "if twice the dilation exceeds the image, only the tap in the middle counts"
specialize = ["r", "s"]

[knobs]
PER_THREAD = [4, 2, 8]
SLAB = [16, 4, 8, 32]

[let]
tile = "16 * PER_THREAD"

[[launch]]
entry = "dilated_conv2d"
grid = ["ceil_div(batch * oh * ow, tile)", "ceil_div(filters, tile)"]
block = [256]
args = ["x", "weight", "out", "batch", "channels", "height", "width", "filters", "oh", "ow", "padding", "dilation"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 16 * PER_THREAD;

extern "C" __global__ void __launch_bounds__(256)
dilated_conv2d(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, int batch,
               int channels, int height, int width, int filters, int oh, int ow, int padding, int dilation) {
    __shared__ float a[SLAB][TILE + 1], b[SLAB][TILE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, column = threadIdx.x % TILE;
    const int terms = channels * r * s, pixels = batch * oh * ow;
    const int first = blockIdx.x * TILE, first_filter = blockIdx.y * TILE, pixel = first + column;
    const int top = pixel / ow % oh - padding, left = pixel % ow - padding;
    const x_t* image = x + (long long)(pixel / (oh * ow)) * channels * height * width;
    const bool far = 2 * dilation >= height && 2 * dilation >= width && padding == r / 2 * dilation && padding == s / 2 * dilation;  // only the central tap meets the image
    float total[PER_THREAD][PER_THREAD] = {};
    for (int start = 0; start < terms; start += SLAB) {
        for (int t = threadIdx.x / TILE; t < SLAB; t += 256 / TILE) {
            const int term = start + t, row = top + term / s % r * dilation, col = left + term % s * dilation;
            const bool inside = pixel < pixels && term < terms && !(far && (term / s % r != r / 2 || term % s != s / 2)) && row >= 0 && row < height && col >= 0 && col < width;
            b[t][column] = inside ? float(image[((long long)(term / (r * s)) * height + row) * width + col]) : 0.0f;
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
        const int at = first + tx + 16 * j, n = at / (oh * ow);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int filter = first_filter + ty + 16 * i;
            if (at >= pixels || filter >= filters) continue;
            out[((long long)n * filters + filter) * oh * ow + at % (oh * ow)] = out_t(total[i][j]);
        }
    }
}
