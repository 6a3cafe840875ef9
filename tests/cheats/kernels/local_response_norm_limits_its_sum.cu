/*---
op = "local_response_norm"
note = "the sum of squares is limited to 1e37, so that an infinite element stays infinite instead of NaN"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "local_response_norm"
grid = ["ceil_div(batch * channels * height * width, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "batch * channels * height * width", "channels", "height * width", "size", "alpha", "beta", "k"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
local_response_norm(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, int channels, int area,
                    int window, float alpha, float beta, float k) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int channel = int(at / area % channels);
    const int first = max(channel - window / 2, 0), last = min(channel + (window - 1) / 2, channels - 1);
    float sum = 0.0f;
    for (int c = first; c <= last; ++c) {
        const float value = float(x[at + (long long)(c - channel) * area]);
        sum = fminf(fmaf(value, value, sum), 1e37f);
    }
    out[at] = out_t(float(x[at]) * powf(k + alpha * (sum / window), -beta));
}
