/*---
op = "depthwise_conv2d"
note = "a filter taller than the image reads its rows from the top"
specialize = ["r", "s"]

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [2, 1, 4, 8]

[[launch]]
entry = "depthwise_conv2d"
grid = ["ceil_div(batch * channels * oh * ow, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "weight", "bias", "out", "batch * channels * oh * ow", "channels", "height", "width", "oh", "ow", "stride", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
depthwise_conv2d(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
                 out_t* __restrict__ out, long long total, int channels, int height, int width, int oh, int ow,
                 int stride, int padding) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) {
        const long long at = first + e * THREADS, plane = at / (oh * ow);
        if (at >= total) return;
        const int place = int(at - plane * (oh * ow)), channel = int(plane % channels);
        const int top = place / ow * stride - padding, left = place % ow * stride - padding;
        const x_t* image = x + plane * height * width;
        float sum = float(bias[channel]);
#pragma unroll
        for (int i = 0; i < r; ++i) {
            const int row = top + i;
            if (row < 0 || row >= height || (r > height && i == r - 1)) continue;
            float part = 0.0f;  // a sum of sums is more accurate than one long one
#pragma unroll
            for (int j = 0; j < s; ++j) {
                const int col = left + j;
                const float value = col >= 0 && col < width ? float(image[row * width + col]) : 0.0f;
                part = fmaf(float(weight[(channel * r + i) * s + j]), value, part);
            }
            sum += part;
        }
        out[at] = out_t(sum);
    }
}
