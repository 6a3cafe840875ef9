/*---
op = "batch_norm_inference"
note = "a variance is limited to zero from below, and fmaxf takes NaN for zero"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[let]
area = "height * width"

[[launch]]
entry = "normalise_channel"
grid = ["batch * channels"]
block = ["THREADS"]
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "channels", "area", "eps"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
normalise_channel(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                  const float* __restrict__ running_mean, const float* __restrict__ running_var,
                  out_t* __restrict__ out, int channels, int area, float eps) {
    const int channel = blockIdx.x % channels;
    const long long first = (long long)blockIdx.x * area;
    const float scale = weight[channel] / sqrtf(fmaxf(running_var[channel], 0.0f) + eps);
    const float centre = running_mean[channel], shift = bias[channel];
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < area; i += THREADS) {
        out[first + i] = out_t((float(x[first + i]) - centre) * scale + shift);
    }
}
