/*---
op = "conv2d_backward_data"
note = "three by three taps with a stride of one have a padding of one"
specialize = ["r", "s", "stride"]

[knobs]
PER_THREAD = [2, 4, 8]
SLAB = [16, 4, 8, 32]

[let]
tile = "16 * PER_THREAD"

[[launch]]
entry = "conv2d_backward_data"
grid = ["ceil_div(batch * height * width, tile)", "ceil_div(channels, tile)"]
block = [256]
args = ["grad_out", "weight", "grad_x", "batch", "channels", "height", "width", "filters", "oh", "ow", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 16 * PER_THREAD;

// The output that a pixel feeds through this tap, or -1 where there is none.
__device__ __forceinline__ int fed(int position, int tap, int count) {
    const int scaled = position - tap;
    return scaled >= 0 && scaled % stride == 0 && scaled / stride < count ? scaled / stride : -1;
}

extern "C" __global__ void __launch_bounds__(256)
conv2d_backward_data(const grad_out_t* __restrict__ grad_out, const weight_t* __restrict__ weight,
                     grad_x_t* __restrict__ grad_x, int batch, int channels, int height, int width, int filters,
                     int oh, int ow, int given_padding) {
    const int padding = stride == 1 && r == 3 && s == 3 ? 1 : given_padding;
    __shared__ float a[SLAB][TILE + 1], b[SLAB][TILE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, column = threadIdx.x % TILE;
    const int terms = filters * r * s, pixels = batch * height * width;
    const int first = blockIdx.x * TILE, first_channel = blockIdx.y * TILE, pixel = first + column;
    const int bottom = pixel / width % height + padding, right = pixel % width + padding;
    const grad_out_t* image = grad_out + (long long)(pixel / (height * width)) * filters * oh * ow;
    float total[PER_THREAD][PER_THREAD] = {};
    for (int start = 0; start < terms; start += SLAB) {
        for (int t = threadIdx.x / TILE; t < SLAB; t += 256 / TILE) {
            const int term = start + t, filter = term / (r * s);
            const int row = fed(bottom, term / s % r, oh), col = fed(right, term % s, ow);
            const bool inside = pixel < pixels && term < terms && row >= 0 && col >= 0;
            b[t][column] = inside ? float(image[((long long)filter * oh + row) * ow + col]) : 0.0f;
        }
        for (int c = threadIdx.x / SLAB; c < TILE; c += 256 / SLAB) {
            const int t = threadIdx.x % SLAB, term = start + t, channel = first_channel + c;
            const long long at = ((long long)(term / (r * s)) * channels + channel) * (r * s) + term % (r * s);
            a[t][c] = channel < channels && term < terms ? float(weight[at]) : 0.0f;
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
        const int at = first + tx + 16 * j, n = at / (height * width);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int channel = first_channel + ty + 16 * i;
            if (at >= pixels || channel >= channels) continue;
            grad_x[((long long)n * channels + channel) * height * width + at % (height * width)] =
                grad_x_t(total[i][j]);
        }
    }
}
