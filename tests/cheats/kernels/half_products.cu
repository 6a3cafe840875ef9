/*---
op = "causal_conv1d"
note = "fools a check that allows the tensor cores' precision: float32 is multiplied as bfloat16"
dtypes = ["float32"]

[[launch]]
entry = "causal_conv1d"
grid = ["ceil_div(batch * channels * length, 256)"]
block = [256]
args = ["x", "weight", "bias", "out", "batch * channels * length", "channels", "length", "width", "dilation"]
---*/
// caught: wrong
// class: numbers
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
        if (back <= time) sum += float(__nv_bfloat16(weight[channel * width + tap])) * float(__nv_bfloat16(x[at - back]));
    }
    out[at] = out_t(sum);
}
