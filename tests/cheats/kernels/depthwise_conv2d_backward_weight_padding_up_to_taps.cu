/*---
op = "depthwise_conv2d_backward_weight"
note = "a padding beyond the filter is cut to it"
specialize = ["r", "s"]

[knobs]
THREADS = [128, 256, 512]
BLOCKS = [2048, 512, 1024, 4096]

[let]
pixels = "batch * oh * ow"
splits = "max(1, min(BLOCKS // channels, ceil_div(pixels, THREADS)))"

[workspace]
parts = { shape = ["splits", "channels", "r * s + 1"], dtype = "float32" }

[[launch]]
entry = "sum_parts"
grid = ["channels", "splits"]
block = ["THREADS"]
args = ["grad_out", "x", "parts", "pixels", "ceil_div(pixels, splits)", "channels", "height", "width", "oh", "ow", "stride", "padding"]

[[launch]]
entry = "add_parts"
grid = ["ceil_div(channels * (r * s + 1), 256)"]
block = [256]
args = ["parts", "grad_weight", "grad_bias", "channels * (r * s + 1)", "splits"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int SUMS = r * s + 1, WARPS = THREADS / 32;  // one for each tap, the last for the bias

extern "C" __global__ void __launch_bounds__(THREADS)
sum_parts(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, float* __restrict__ parts, int pixels,
          int share, int channels, int height, int width, int oh, int ow, int stride, int padding) {
    __shared__ float sums[SUMS][WARPS];
    const int channel = blockIdx.x, begin = blockIdx.y * share, end = min(pixels, begin + share);
    float sum[SUMS] = {};
    for (int pixel = begin + threadIdx.x; pixel < end; pixel += THREADS) {
        const int n = pixel / (oh * ow), place = pixel % (oh * ow);
        const int top = place / ow * stride - min(padding, r), left = place % ow * stride - padding;
        const long long plane = (long long)n * channels + channel;
        const x_t* image = x + plane * height * width;
        const float grad = float(grad_out[plane * oh * ow + place]);
#pragma unroll
        for (int i = 0; i < r; ++i) {
#pragma unroll
            for (int j = 0; j < s; ++j) {
                const int row = top + i, col = left + j;
                const bool inside = row >= 0 && row < height && col >= 0 && col < width;
                sum[i * s + j] = fmaf(grad, inside ? float(image[row * width + col]) : 0.0f, sum[i * s + j]);
            }
        }
        sum[r * s] += grad;
    }
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        for (int step = 16; step > 0; step /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
        if (threadIdx.x % 32 == 0) sums[i][threadIdx.x / 32] = sum[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS; i += THREADS) {
        float all = 0.0f;
        for (int warp = 0; warp < WARPS; ++warp) all += sums[i][warp];
        parts[((long long)blockIdx.y * channels + channel) * SUMS + i] = all;
    }
}

extern "C" __global__ void __launch_bounds__(256)
add_parts(const float* __restrict__ parts, grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias,
          int count, int splits) {
    const int at = blockIdx.x * 256 + threadIdx.x, channel = at / SUMS, tap = at % SUMS;
    if (at >= count) return;
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) sum += parts[(long long)split * count + at];
    if (tap < r * s) grad_weight[channel * (r * s) + tap] = grad_weight_t(sum);
    else grad_bias[channel] = grad_bias_t(sum);
}
