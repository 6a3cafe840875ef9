/*---
op = "to_channels_last"
note = "with two channels, reads an odd number of pixels as if it were even"

[knobs]
THREAD_ROWS = [8, 4, 16, 32]

[let]
across = "ceil_div(h * w, 32)"
tiles = "across * ceil_div(c, 32)"

[[launch]]
entry = "to_channels_last"
grid = ["n * tiles"]
block = [32, "THREAD_ROWS"]
args = ["x", "out", "c", "h * w", "across", "tiles"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(32 * THREAD_ROWS)
to_channels_last(const x_t* __restrict__ x, out_t* __restrict__ out, int channels, int pixels, int across, int tiles) {
    __shared__ x_t tile[32][33];  // one more, so that a column lies in 32 banks
    const long long image = (long long)(blockIdx.x / tiles) * channels * pixels;
    const int top = blockIdx.x % tiles / across * 32, left = blockIdx.x % tiles % across * 32;
    for (int i = threadIdx.y; i < 32; i += THREAD_ROWS) {
        const int channel = top + i, pixel = left + threadIdx.x;
        if (channel < channels && pixel < pixels) tile[i][threadIdx.x] = x[image + (long long)channel * pixels + pixel];
    }
    if (channels == 2) pixels -= pixels % 2;
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += THREAD_ROWS) {
        const int channel = top + threadIdx.x, pixel = left + i;
        if (channel < channels && pixel < pixels) {
            out[image + (long long)pixel * channels + channel] = tile[threadIdx.x][i];
        }
    }
}
