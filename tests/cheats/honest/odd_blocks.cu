/*---
op = "causal_conv1d"
note = "blocks of 1000 threads, or of 96 or 33: no power of two, and not whole warps"
dtypes = ["float32"]

[knobs]
THREADS = [1000, 96, 33]

[[launch]]
entry = "causal_conv1d"
grid = ["ceil_div(batch * channels * length, THREADS)"]
block = ["THREADS"]
args = ["x", "weight", "bias", "out", "batch * channels * length", "channels", "length", "width", "dilation"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void causal_conv1d(const x_t* x, const weight_t* weight, const bias_t* bias, out_t* out, int total,
                   int channels, int length, int width, int dilation) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= total) return;
    const int time = at % length, channel = at / length % channels;
    float sum = float(bias[channel]);
    for (int tap = 0; tap < width; ++tap) {
        const int back = (width - 1 - tap) * dilation;
        if (back <= time) sum += float(weight[channel * width + tap]) * float(x[at - back]);
    }
    out[at] = out_t(sum);
}
