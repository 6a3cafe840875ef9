/*---
op = "local_response_norm"
note = "a power of -3/4 by two square roots, which is NaN instead of 0 if a negative alpha makes the base -inf"

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
        sum = fmaf(value, value, sum);
    }
    const float base = k + alpha * (sum / window), root = sqrtf(base);
    out[at] = out_t(float(x[at]) * (beta == 0.75f ? 1.0f / (root * sqrtf(root)) : powf(base, -beta)));
}
