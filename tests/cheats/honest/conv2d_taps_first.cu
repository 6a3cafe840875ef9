/*---
op = "conv2d"
note = "a thread per pixel, the taps in the outer loops and the channels inside, without shared memory"

[[launch]]
entry = "conv2d"
grid = ["ceil_div(batch * filters * oh * ow, 128)"]
block = [128]
args = ["x", "weight", "out", "batch * filters * oh * ow", "channels", "height", "width", "filters", "r", "s", "oh", "ow", "stride", "padding"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void conv2d(const x_t* x, const weight_t* weight, out_t* out, long long total, int channels,
                                  int height, int width, int filters, int r, int s, int oh, int ow, int stride,
                                  int padding) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= total) return;
    const int col = at % ow, row = at / ow % oh, filter = at / ow / oh % filters;
    const long long image = at / ow / oh / filters;
    float sum = 0.0f;
    for (int i = 0; i < r; ++i) {
        for (int j = 0; j < s; ++j) {
            const int y = row * stride + i - padding, x_at = col * stride + j - padding;
            if (y < 0 || y >= height || x_at < 0 || x_at >= width) continue;
            for (int c = 0; c < channels; ++c) {
                sum += float(weight[(((long long)filter * channels + c) * r + i) * s + j]) *
                       float(x[((image * channels + c) * height + y) * width + x_at]);
            }
        }
    }
    out[at] = out_t(sum);
}
