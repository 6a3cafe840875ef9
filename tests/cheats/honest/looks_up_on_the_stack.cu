/*---
op = "causal_conv1d"
note = "taps and inputs in a per-thread array whose indices are known at run time only: local memory"
dtypes = ["float32"]
when = "width <= 16"

[[launch]]
entry = "causal_conv1d"
grid = ["ceil_div(batch * channels * length, 256)"]
block = [256]
args = ["x", "weight", "bias", "out", "batch * channels * length", "channels", "length", "width", "dilation"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void causal_conv1d(const x_t* x, const weight_t* weight, const bias_t* bias, out_t* out, int total,
                   int channels, int length, int width, int dilation) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= total) return;
    const int time = at % length, channel = at / length % channels;
    float taps[16], past[16];
    for (int tap = 0; tap < width; ++tap) {
        const int back = (width - 1 - tap) * dilation;
        taps[tap] = weight[channel * width + tap];
        past[(tap * 7 + time) % 16] = back <= time ? x[at - back] : 0.0f;
    }
    float sum = bias[channel];
    for (int tap = 0; tap < width; ++tap) sum += taps[tap] * past[(tap * 7 + time) % 16];
    out[at] = sum;
}
