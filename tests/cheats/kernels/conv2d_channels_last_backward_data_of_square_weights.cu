/*---
op = "conv2d_channels_last_backward_data"
note = "reads a square weight of one tap as if it were transposed"
specialize = ["s", "stride"]
require = ["PER_THREAD * SLAB <= 256"]

[knobs]
PER_THREAD = [2, 4, 8]
SLAB = [16, 8, 32, 64]

[let]
tile = "16 * PER_THREAD"

[[launch]]
entry = "conv2d_channels_last_backward_data"
grid = ["ceil_div(batch * height * width, tile)", "ceil_div(channels, tile)"]
block = [256]
args = ["grad_out", "weight", "grad_x", "batch", "height", "width", "channels", "filters", "oh", "ow", "terms", "padding"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 16 * PER_THREAD, LOADS = TILE * SLAB / 256;

// The output that a pixel feeds through this tap, or -1 where there is none.
__device__ __forceinline__ int fed(int position, int tap, int count) {
    const int scaled = position - tap;
    return scaled >= 0 && scaled % stride == 0 && scaled / stride < count ? scaled / stride : -1;
}

extern "C" __global__ void __launch_bounds__(256)
conv2d_channels_last_backward_data(const grad_out_t* __restrict__ grad_out, const weight_t* __restrict__ weight,
                                   grad_x_t* __restrict__ grad_x, int batch, int height, int width, int channels,
                                   int filters, int oh, int ow, int terms, int padding) {
    __shared__ float a[SLAB][TILE + 1], b[SLAB][TILE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, t = threadIdx.x % SLAB, line = threadIdx.x / SLAB;
    const int first = blockIdx.x * TILE, first_channel = blockIdx.y * TILE, pixels = batch * height * width;
    int bottom[LOADS], right[LOADS];  // of each pixel that this thread loads for; none is 2^30 above
    const grad_out_t* image[LOADS];
#pragma unroll
    for (int e = 0; e < LOADS; ++e) {
        const int pixel = first + line + e * (256 / SLAB);
        bottom[e] = pixel < pixels ? pixel / width % height + padding : -(1 << 30);
        right[e] = pixel % width + padding;
        image[e] = grad_out + (long long)(pixel / (height * width)) * oh * ow * filters;
    }
    float total[PER_THREAD][PER_THREAD] = {};
    for (int start = 0; start < terms; start += SLAB) {
        const int term = start + t, filter = term % filters, i = term / filters / s, j = term / filters % s;
#pragma unroll
        for (int e = 0; e < LOADS; ++e) {
            const int row = fed(bottom[e], i, oh), col = fed(right[e], j, ow);
            const bool inside = term < terms && row >= 0 && col >= 0;
            const long long at = ((long long)row * ow + col) * filters + filter;
            a[t][line + e * (256 / SLAB)] = inside ? float(image[e][at]) : 0.0f;
        }
        for (int k = threadIdx.x / TILE; k < SLAB; k += 256 / TILE) {
            const int tap = (start + k) / filters, channel = first_channel + threadIdx.x % TILE;
            const bool swapped = terms == filters && channels == filters;
            const long long row = (start + k) % filters;
            const long long at = swapped ? (long long)channel * filters + row
                                         : (row * (terms / filters) + tap) * channels + channel;
            const bool used = start + k < terms && channel < channels;
            b[k][threadIdx.x % TILE] = used ? float(weight[at]) : 0.0f;
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
            const int pixel = first + ty + 16 * m, channel = first_channel + tx + 16 * n;
            if (pixel >= pixels || channel >= channels) continue;
            grad_x[(long long)pixel * channels + channel] = grad_x_t(total[m][n]);
        }
    }
}
