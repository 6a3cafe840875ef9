/*---
op = "conv_transpose1d"
note = "one thread per result, which visits only the taps that an input reaches, the last first, and adds up each channel on its own"

[[launch]]
entry = "conv_transpose1d"
grid = ["min(ceil_div(batch * filters * out_length, 128), 64)"]
block = [128]
args = ["x", "weight", "out", "batch * filters * out_length", "channels", "length", "filters", "out_length", "taps", "stride", "padding"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
conv_transpose1d(const x_t* x, const weight_t* weight, out_t* out, long long total, int channels, int length,
                 int filters, int out_length, int taps, int stride, int padding) {
    for (long long at = blockIdx.x * 128ll + threadIdx.x; at < total; at += gridDim.x * 128ll) {
        const int place = int(at % out_length) + padding, filter = int(at / out_length % filters);
        const x_t* sequence = x + at / out_length / filters * channels * length;
        const int first = place / stride, phase = place % stride;
        double sum = 0.0;
        for (int channel = 0; channel < channels; ++channel) {
            const weight_t* window = weight + ((long long)channel * filters + filter) * taps;
            float part = 0.0f;
            for (int back = (taps - 1 - phase) / stride; back >= 0; --back) {
                const int source = first - back, tap = phase + back * stride;
                if (tap >= taps || source < 0 || source >= length) continue;
                part = fmaf(float(window[tap]), float(sequence[(long long)channel * length + source]), part);
            }
            sum += part;
        }
        out[at] = out_t(float(sum));
    }
}
