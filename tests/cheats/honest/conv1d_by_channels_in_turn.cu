/*---
op = "conv1d"
note = "a thread per result; each channel is added up on its own, even and odd ones apart"

[[launch]]
entry = "conv1d"
grid = ["ceil_div(batch * filters * out_length, 128)"]
block = [128]
args = ["x", "weight", "out", "batch * filters * out_length", "channels", "length", "filters", "taps", "out_length", "stride", "padding", "dilation"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
conv1d(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, long long total,
       int channels, int length, int filters, int taps, int out_length, int stride, int padding, int dilation) {
    const long long at = blockIdx.x * 128ll + threadIdx.x;
    if (at >= total) return;
    const int first = int(at % out_length) * stride - padding, filter = int(at / out_length % filters);
    const x_t* image = x + at / out_length / filters * channels * length;
    const weight_t* own = weight + (long long)filter * channels * taps;
    float sums[2] = {};
    for (int channel = 0; channel < channels; ++channel) {
        float part = 0.0f;
        for (int tap = 0; tap < taps; ++tap) {
            const int place = first + tap * dilation;
            const float value = place >= 0 && place < length ? float(image[(long long)channel * length + place]) : 0.0f;
            part = fmaf(float(own[channel * taps + tap]), value, part);
        }
        sums[channel % 2] += part;
    }
    out[at] = out_t(sums[0] + sums[1]);
}
