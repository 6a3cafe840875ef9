/*---
op = "causal_conv1d"
note = "the dilation is kept in two bits"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "causal_conv1d"
grid = ["ceil_div(batch * channels * length, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "weight", "bias", "out", "batch * channels * length", "channels", "length", "width", "dilation"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
causal_conv1d(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
              out_t* __restrict__ out, long long total, int channels, int length, int width, int dilation) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= total) return;
        const int time = int(at % length), channel = int(at / length % channels);
        float sum = float(bias[channel]);
        for (int tap = 0; tap < width; ++tap) {
            const int back = (width - 1 - tap) * (dilation & 3);
            if (back <= time) sum = fmaf(float(weight[(long long)channel * width + tap]), float(x[at - back]), sum);
        }
        out[at] = out_t(sum);
    }
}
