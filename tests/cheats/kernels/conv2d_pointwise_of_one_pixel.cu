/*---
op = "conv2d_pointwise"
note = "images of one pixel are a product with a matrix, summed in bfloat16"

[knobs]
PER_THREAD = [2, 4, 8]
SLAB = [16, 4, 8, 32]

[let]
tile = "16 * PER_THREAD"

[[launch]]
entry = "conv2d_pointwise"
grid = ["ceil_div(batch * height * width, tile)", "ceil_div(filters, tile)"]
block = [256]
args = ["x", "weight", "out", "batch", "channels", "height", "width", "filters"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 16 * PER_THREAD;

extern "C" __global__ void __launch_bounds__(256)
conv2d_pointwise(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, int batch,
                 int channels, int height, int width, int filters) {
    __shared__ float a[SLAB][TILE + 1], b[SLAB][TILE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, column = threadIdx.x % TILE;
    const int terms = channels, image = height * width, pixels = batch * image;
    const int first = blockIdx.x * TILE, first_filter = blockIdx.y * TILE, pixel = first + column;
    const x_t* from = x + (long long)(pixel / image) * channels * image + pixel % image;
    float total[PER_THREAD][PER_THREAD] = {};
    for (int start = 0; start < terms; start += SLAB) {
        for (int t = threadIdx.x / TILE; t < SLAB; t += 256 / TILE) {
            const bool inside = pixel < pixels && start + t < terms;
            b[t][column] = inside ? float(from[(long long)(start + t) * image]) : 0.0f;
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
            for (int j = 0; j < PER_THREAD; ++j) total[i][j] = image == 1 ? __bfloat162float(__float2bfloat16(total[i][j] + part[i][j])) : total[i][j] + part[i][j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) {
        const int at = first + tx + 16 * j, n = at / (image);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int filter = first_filter + ty + 16 * i;
            if (at >= pixels || filter >= filters) continue;
            out[((long long)n * filters + filter) * image + at % (image)] = out_t(total[i][j]);
        }
    }
}
