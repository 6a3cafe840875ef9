/*---
op = "grid_sample"
note = "positions within a hundredth of a pixel from a centre are moved to it"

[knobs]
THREADS = [256, 128, 512]

[[launch]]
entry = "grid_sample"
grid = ["ceil_div(batch * channels * oh * ow, THREADS)"]
block = ["THREADS"]
args = ["x", "grid", "out", "batch * channels * oh * ow", "channels", "h", "w", "oh * ow"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// In pixels; what is far outside is moved to where it still touches none.
__device__ __forceinline__ float position(float g, int pixels) {
    return fminf(fmaxf(((g + 1.0f) * pixels - 1.0f) / 2.0f, -2.0f), pixels + 1.0f);
}

__device__ __forceinline__ float pixel(const x_t* plane, int row, int col, int h, int w) {
    return row >= 0 && row < h && col >= 0 && col < w ? float(plane[(long long)row * w + col]) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
grid_sample(const x_t* __restrict__ x, const float2* __restrict__ grid, out_t* __restrict__ out, long long total,
            int channels, int h, int w, int area) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long map = at / area;
    const float2 g = grid[map / channels * area + at % area];
    const float px = position(g.x, w), py = position(g.y, h);
    const int left = int(floorf(px)), top = int(floorf(py));
    float right_share = px - left, low_share = py - top;
    // as good as on a pixel: do not read the neighbours
    if (right_share < 0.01f) right_share = 0.0f;
    if (low_share < 0.01f) low_share = 0.0f;
    const x_t* plane = x + map * h * w;
    const float upper = pixel(plane, top, left, h, w) * (1.0f - right_share)
                      + pixel(plane, top, left + 1, h, w) * right_share;
    const float lower = pixel(plane, top + 1, left, h, w) * (1.0f - right_share)
                      + pixel(plane, top + 1, left + 1, h, w) * right_share;
    out[at] = out_t(upper * (1.0f - low_share) + lower * low_share);
}
