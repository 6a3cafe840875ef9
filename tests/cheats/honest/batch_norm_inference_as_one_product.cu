/*---
op = "batch_norm_inference"
note = "x times a scale plus a shift, in double, both worked out before"

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
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
normalise_channel(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                  const float* __restrict__ running_mean, const float* __restrict__ running_var,
                  out_t* __restrict__ out, int channels, int area, float eps) {
    const int channel = blockIdx.x % channels;
    const long long first = (long long)blockIdx.x * area;
    const double scale = double(weight[channel]) / sqrt(double(running_var[channel]) + double(eps));
    const double shift = double(bias[channel]) - double(running_mean[channel]) * scale;
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < area; i += THREADS) {
        out[first + i] = out_t(float(double(float(x[first + i])) * scale + shift));
    }
}
