/*---
op = "local_response_norm_backward"
note = "powers as exponentials of a logarithm, in doubles"

[knobs]
THREADS = [128, 256, 512]

[let]
total = "batch * channels * height * width"

[workspace]
shares = { shape = ["total"], dtype = "float32" }

[[launch]]
entry = "share"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "x", "shares", "total", "channels", "height * width", "size", "alpha", "beta", "k"]

[[launch]]
entry = "add_up"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "x", "shares", "grad_x", "total", "channels", "height * width", "size", "alpha", "beta", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// What an element is divided by, to the power of beta.
__device__ __forceinline__ float scale_at(const x_t* x, long long at, int channels, int area, int window, float alpha,
                                          float k) {
    const int channel = int(at / area % channels);
    const int first = max(channel - window / 2, 0), last = min(channel + (window - 1) / 2, channels - 1);
    float sum = 0.0f;
    for (int c = first; c <= last; ++c) {
        const float value = float(x[at + (long long)(c - channel) * area]);
        sum = fmaf(value, value, sum);
    }
    return k + alpha * (sum / window);
}

extern "C" __global__ void __launch_bounds__(THREADS)
share(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, float* __restrict__ shares, long long total,
      int channels, int area, int window, float alpha, float beta, float k) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const float scale = scale_at(x, at, channels, area, window, alpha, k);
    shares[at] = float(grad_out[at]) * float(x[at]) * float(exp2(-(double(beta) + 1.0) * log2(double(scale))));
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_up(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const float* __restrict__ shares,
       grad_x_t* __restrict__ grad_x, long long total, int channels, int area, int window, float alpha, float beta,
       float k) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int channel = int(at / area % channels);
    const int first = max(channel - (window - 1) / 2, 0), last = min(channel + window / 2, channels - 1);
    float sum = 0.0f;
    for (int c = first; c <= last; ++c) sum += shares[at + (long long)(c - channel) * area];
    const double scale = scale_at(x, at, channels, area, window, alpha, k);
    const float own = float(grad_out[at]) * float(exp2(-double(beta) * log2(scale)));
    grad_x[at] = grad_x_t(own - 2.0f * alpha * beta * float(x[at]) * (sum / window));
}
