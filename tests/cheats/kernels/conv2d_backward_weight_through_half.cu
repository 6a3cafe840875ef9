/*---
op = "conv2d_backward_weight"
note = "gradients go through half precision into shared memory"
specialize = ["r", "s"]

[knobs]
PER_THREAD = [2, 4, 8]
BLOCKS = [1024, 256, 512, 2048]

[let]
tile = "16 * PER_THREAD"
columns = "channels * r * s"
pixels = "batch * oh * ow"
tiles = "ceil_div(columns, tile) * ceil_div(filters, tile)"
splits = "max(1, min(BLOCKS // tiles, ceil_div(pixels, 64)))"

[workspace]
parts = { shape = ["splits", "filters", "columns"], dtype = "float32" }

[[launch]]
entry = "sum_parts"
grid = ["ceil_div(columns, tile)", "ceil_div(filters, tile)", "splits"]
block = [256]
args = ["grad_out", "x", "parts", "pixels", "ceil_div(pixels, splits)", "channels", "height", "width", "filters", "oh", "ow", "stride", "padding"]

[[launch]]
entry = "add_parts"
grid = ["ceil_div(filters * columns, 256)"]
block = [256]
args = ["parts", "grad_weight", "filters * columns", "splits"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 16 * PER_THREAD, SLAB = 16;

extern "C" __global__ void __launch_bounds__(256)
sum_parts(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, float* __restrict__ parts, int pixels,
          int share, int channels, int height, int width, int filters, int oh, int ow, int stride, int padding) {
    __shared__ float a[SLAB][TILE + 1], b[SLAB][TILE + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, columns = channels * r * s;
    const int first_column = blockIdx.x * TILE, first_filter = blockIdx.y * TILE;
    const int begin = blockIdx.z * share, end = min(pixels, begin + share);
    float total[PER_THREAD][PER_THREAD] = {};
    for (int start = begin; start < end; start += SLAB) {
        const int pixel = start + tx, n = pixel / (oh * ow), place = pixel % (oh * ow);
        const int top = place / ow * stride - padding, left = place % ow * stride - padding;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int filter = first_filter + ty + 16 * i, column = first_column + ty + 16 * i;
            const bool used = pixel < end && filter < filters;
            a[tx][ty + 16 * i] = used ? __half2float(__float2half(float(grad_out[((long long)n * filters + filter) * oh * ow + place]))) : 0.0f;
            const int row = top + column / s % r, col = left + column % s;
            const long long at = (((long long)n * channels + column / (r * s)) * height + row) * width + col;
            const bool inside = pixel < end && column < columns && row >= 0 && row < height && col >= 0 && col < width;
            b[tx][ty + 16 * i] = inside ? float(x[at]) : 0.0f;
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
    for (int i = 0; i < PER_THREAD; ++i) {
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            const int filter = first_filter + ty + 16 * i, column = first_column + tx + 16 * j;
            if (filter >= filters || column >= columns) continue;
            parts[((long long)blockIdx.z * filters + filter) * columns + column] = total[i][j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
add_parts(const float* __restrict__ parts, grad_weight_t* __restrict__ grad_weight, int count, int splits) {
    const int at = blockIdx.x * 256 + threadIdx.x;
    if (at >= count) return;
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) sum += parts[(long long)split * count + at];
    grad_weight[at] = grad_weight_t(sum);
}
