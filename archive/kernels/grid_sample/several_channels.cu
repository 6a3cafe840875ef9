/*---
op = "grid_sample"
note = "a thread computes where a position lies and its four shares once, for several channels, whose loads are all in flight at once"
specialize = ["channels", "h", "w", "area", "turns", "across"]

[knobs]
CHANNELS = [4, 2, 8, 16]
THREADS = [256, 128, 512]

[let]
area = "oh * ow"
turns = "ceil_div(channels, CHANNELS)"
across = "ceil_div(area, THREADS)"

[[launch]]
entry = "sample"
grid = ["batch * turns * across"]
block = ["THREADS"]
args = ["x", "grid", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// In pixels; what is far outside is moved to where it still touches none.
__device__ __forceinline__ float position(float g, int pixels) {
    return fminf(fmaxf(((g + 1.0f) * pixels - 1.0f) / 2.0f, -2.0f), pixels + 1.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sample(const x_t* __restrict__ x, const float2* __restrict__ grid, out_t* __restrict__ out) {
    const int at = blockIdx.x % across * THREADS + threadIdx.x, first = blockIdx.x / across % turns * CHANNELS;
    const long long batch = blockIdx.x / across / turns;
    if (at >= area) return;
    const float2 g = grid[batch * area + at];
    const float px = position(g.x, w), py = position(g.y, h);
    const int left = int(floorf(px)), top = int(floorf(py));
    const float right_share = px - left, low_share = py - top;
    const bool in_left = left >= 0 && left < w, in_right = left + 1 >= 0 && left + 1 < w;
    const bool in_top = top >= 0 && top < h, in_bottom = top + 1 >= 0 && top + 1 < h;
    const x_t* plane = x + (batch * channels + first) * ((long long)h * w);
    out_t* to = out + (batch * channels + first) * (long long)area + at;
    const long long place = (long long)top * w + left;
    x_t corner[CHANNELS][4];
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        const x_t* own = plane + (long long)c * h * w + place;
        const bool here = first + c < channels;
        corner[c][0] = here && in_top && in_left ? own[0] : x_t(0.0f);
        corner[c][1] = here && in_top && in_right ? own[1] : x_t(0.0f);
        corner[c][2] = here && in_bottom && in_left ? own[w] : x_t(0.0f);
        corner[c][3] = here && in_bottom && in_right ? own[w + 1] : x_t(0.0f);
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        if (first + c >= channels) continue;
        const float upper = float(corner[c][0]) * (1.0f - right_share) + float(corner[c][1]) * right_share;
        const float lower = float(corner[c][2]) * (1.0f - right_share) + float(corner[c][3]) * right_share;
        to[(long long)c * area] = out_t(upper * (1.0f - low_share) + lower * low_share);
    }
}
