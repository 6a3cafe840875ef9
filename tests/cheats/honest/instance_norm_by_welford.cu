/*---
op = "instance_norm"
note = "a warp per channel; Welford updates lane by lane, then merges of pairs"

[[launch]]
entry = "instance_norm"
grid = ["ceil_div(batch * channels, 4)"]
block = [128]
args = ["x", "weight", "bias", "out", "mean", "rstd", "batch * channels", "channels", "area", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
instance_norm(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
              out_t* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, int planes, int channels,
              int area, float eps) {
    const int plane = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (plane >= planes) return;
    const long long first = (long long)plane * area;
    float count = 0.0f, centre = 0.0f, squares = 0.0f;
    for (int i = lane; i < area; i += 32) {
        const float value = float(x[first + i]), off = value - centre;
        count += 1.0f;
        centre += off / count;
        squares = fmaf(off, value - centre, squares);
    }
    for (int step = 16; step > 0; step /= 2) {
        const float n = __shfl_xor_sync(0xffffffffu, count, step), m = __shfl_xor_sync(0xffffffffu, centre, step);
        squares += __shfl_xor_sync(0xffffffffu, squares, step);
        const float total = count + n, off = m - centre;
        if (total > 0.0f) {
            squares = fmaf(off * off, count * n / total, squares);
            centre = (count * centre + n * m) / total;
        }
        count = total;
    }
    const float scale = 1.0f / sqrtf(squares / area + eps);
    const float gain = weight[plane % channels], shift = bias[plane % channels];
    if (lane == 0) mean[plane] = centre, rstd[plane] = scale;
    for (int i = lane; i < area; i += 32) {
        out[first + i] = out_t(fmaf((float(x[first + i]) - centre) * scale, gain, shift));
    }
}
