/*---
op = "grid_sample"
note = "a thread takes several positions, the next of which is on its way while the pixels round one are, or several groups of channels at one position; so that few threads wait for a position alone"
specialize = ["channels", "h", "w", "area", "slices", "loops", "places", "across"]

[knobs]
CHANNELS = [4, 2, 8]
LOOPS = [4, 2, 8]
PLACES = [4, 2, 8]
THREADS = [256, 128]

[let]
area = "oh * ow"
turns = "ceil_div(channels, CHANNELS)"
loops = "min(turns, LOOPS)"
slices = "ceil_div(turns, loops)"
places = "max(1, PLACES // loops)"
across = "ceil_div(area, THREADS * places)"

[[launch]]
entry = "sample"
grid = ["batch * slices * across"]
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
    const int begin = blockIdx.x % across * (THREADS * places) + threadIdx.x;
    const int slice = blockIdx.x / across % slices * (loops * CHANNELS);
    const long long batch = blockIdx.x / across / slices;
    const x_t* const image = x + (batch * channels + slice) * ((long long)h * w);
    out_t* const to = out + (batch * channels + slice) * (long long)area;
    const float2* const positions = grid + batch * area;
    float2 next = begin < area ? positions[begin] : make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int i = 0; i < places; ++i) {
        const int at = begin + i * THREADS;
        if (at >= area) return;
        const float px = position(next.x, w), py = position(next.y, h);
        if (i + 1 < places && at + THREADS < area) next = positions[at + THREADS];
        const int left = int(floorf(px)), top = int(floorf(py));
        const float right_share = px - left, low_share = py - top;
        const bool in_left = left >= 0 && left < w, in_right = left + 1 >= 0 && left + 1 < w;
        const bool in_top = top >= 0 && top < h, in_bottom = top + 1 >= 0 && top + 1 < h;
        const x_t* corners = image + (long long)top * w + left;
        out_t* result = to + at;
#pragma unroll 1
        for (int first = 0; first < loops * CHANNELS && slice + first < channels; first += CHANNELS) {
            x_t corner[CHANNELS][4];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                const x_t* own = corners + (long long)c * h * w;
                const bool here = channels % CHANNELS == 0 || slice + first + c < channels;
                corner[c][0] = here && in_top && in_left ? own[0] : x_t(0.0f);
                corner[c][1] = here && in_top && in_right ? own[1] : x_t(0.0f);
                corner[c][2] = here && in_bottom && in_left ? own[w] : x_t(0.0f);
                corner[c][3] = here && in_bottom && in_right ? own[w + 1] : x_t(0.0f);
            }
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                if (channels % CHANNELS != 0 && slice + first + c >= channels) continue;
                const float upper = float(corner[c][0]) * (1.0f - right_share) + float(corner[c][1]) * right_share;
                const float lower = float(corner[c][2]) * (1.0f - right_share) + float(corner[c][3]) * right_share;
                result[(long long)c * area] = out_t(upper * (1.0f - low_share) + lower * low_share);
            }
            corners += (long long)CHANNELS * h * w;
            result += (long long)CHANNELS * area;
        }
    }
}
