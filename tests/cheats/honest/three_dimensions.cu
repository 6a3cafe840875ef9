/*---
op = "causal_conv1d"
note = "a grid and blocks of three dimensions: time, channel and batch"
dtypes = ["float16", "float32"]
when = "channels <= 65535 * 4 and batch <= 65535 * 2"

[[launch]]
entry = "causal_conv1d"
grid = ["ceil_div(length, 32)", "ceil_div(channels, 4)", "ceil_div(batch, 2)"]
block = [32, 4, 2]
args = ["x", "weight", "bias", "out", "batch", "channels", "length", "width", "dilation"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void causal_conv1d(const x_t* x, const weight_t* weight, const bias_t* bias, out_t* out, int batch,
                                        int channels, int length, int width, int dilation) {
    const int time = blockIdx.x * blockDim.x + threadIdx.x, channel = blockIdx.y * blockDim.y + threadIdx.y;
    const int sequence = blockIdx.z * blockDim.z + threadIdx.z;
    if (time >= length || channel >= channels || sequence >= batch) return;
    const long long row = ((long long)sequence * channels + channel) * length;
    float sum = float(bias[channel]);
    for (int tap = 0; tap < width; ++tap) {
        const int at = time - (width - 1 - tap) * dilation;
        if (at >= 0) sum = fmaf(float(weight[channel * width + tap]), float(x[row + at]), sum);
    }
    out[row + time] = out_t(sum);
}
