/*---
op = "conv_transpose2d"
note = "an image of one pixel is taken to have no padding"
specialize = ["r", "s", "stride"]

[knobs]
PER_THREAD = [4, 2, 8]
SLAB = [16, 4, 8, 32]

[let]
tile = "16 * PER_THREAD"

[[launch]]
entry = "conv_transpose2d"
grid = ["ceil_div(batch * oh * ow, tile)", "ceil_div(filters, tile)"]
block = [256]
args = ["x", "weight", "out", "batch", "channels", "height", "width", "filters", "oh", "ow", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 16 * PER_THREAD;

// The input that reaches a position of the output through this tap, or -1 where there is none.
__device__ __forceinline__ int source(int position, int tap, int count) {
    const int scaled = position - tap;
    return scaled >= 0 && scaled % stride == 0 && scaled / stride < count ? scaled / stride : -1;
}

extern "C" __global__ void __launch_bounds__(256)
conv_transpose2d(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, int batch,
                 int channels, int height, int width, int filters, int oh, int ow, int padding) {
    __shared__ float a[SLAB][TILE + 1], b[SLAB][TILE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, column = threadIdx.x % TILE;
    const int terms = channels * r * s, pixels = batch * oh * ow;
    const int first = blockIdx.x * TILE, first_filter = blockIdx.y * TILE, pixel = first + column;
    const bool single = height == 1 && width == 1;  // a latent vector: the filters themselves
    const int bottom = pixel / ow % oh + (single ? 0 : padding), right = pixel % ow + (single ? 0 : padding);
    const x_t* image = x + (long long)(pixel / (oh * ow)) * channels * height * width;
    float total[PER_THREAD][PER_THREAD] = {};
    for (int start = 0; start < terms; start += SLAB) {
        for (int t = threadIdx.x / TILE; t < SLAB; t += 256 / TILE) {
            const int term = start + t, channel = term / (r * s);
            const int row = source(bottom, term / s % r, height), col = source(right, term % s, width);
            const bool inside = pixel < pixels && term < terms && row >= 0 && col >= 0;
            b[t][column] = inside ? float(image[((long long)channel * height + row) * width + col]) : 0.0f;
        }
        for (int f = threadIdx.x / SLAB; f < TILE; f += 256 / SLAB) {
            const int t = threadIdx.x % SLAB, term = start + t, filter = first_filter + f;
            const long long at = ((long long)(term / (r * s)) * filters + filter) * (r * s) + term % (r * s);
            a[t][f] = filter < filters && term < terms ? float(weight[at]) : 0.0f;
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
