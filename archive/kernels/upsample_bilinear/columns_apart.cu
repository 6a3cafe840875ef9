/*---
op = "upsample_bilinear"
note = "for rows of any width: a warp makes several times 32 columns of some rows, lane by lane, so that all stores are side by side wherever rows begin, and what depends on the row alone is worked out once for all of a lane's columns; it interpolates along a row of the input once and uses that for all results that lie between the row and the next"
specialize = ["h", "w", "oh", "ow", "each", "bands", "strips", "total"]

[knobs]
ROWS = [16, 8, 32]
EACH = [6, 3, 4, 8]
THREADS = [128, 256]

[let]
strips = "ceil_div(ow, 32 * EACH)"
each = "ceil_div(ow, 32 * strips)"
bands = "ceil_div(oh, ROWS)"
total = "batch * channels * bands * strips"

[[launch]]
entry = "interpolate"
grid = ["ceil_div(total, THREADS // 32)"]
block = ["THREADS"]
args = ["x", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float position(int i, float scale) { return fmaxf((i + 0.5f) * scale - 0.5f, 0.0f); }

extern "C" __global__ void __launch_bounds__(THREADS)
interpolate(const x_t* __restrict__ x, out_t* __restrict__ out) {
    const long long at = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (at >= total) return;  // the whole warp
    const int column = int(at % strips) * (32 * each) + threadIdx.x % 32, first = int(at / strips % bands) * ROWS;
    const long long map = at / strips / bands;
    const x_t* const plane = x + map * ((long long)h * w);
    out_t* to = out + map * ((long long)oh * ow) + (long long)first * ow + column;
    int left[each], right[each];
    float far[each];
#pragma unroll
    for (int v = 0; v < each; ++v) {
        const float place = position(min(column + 32 * v, ow - 1), float(w) / ow);
        left[v] = min(int(place), w - 1), right[v] = min(left[v] + 1, w - 1);
        far[v] = fminf(place - left[v], 1.0f);
    }
    const auto along = [&](float (&line)[each], int row) {
        const x_t* const from = plane + (long long)row * w;
        x_t a[each], b[each];
#pragma unroll
        for (int v = 0; v < each; ++v) a[v] = from[left[v]], b[v] = from[right[v]];
#pragma unroll
        for (int v = 0; v < each; ++v) line[v] = (1.0f - far[v]) * float(a[v]) + far[v] * float(b[v]);
    };
    float upper[each], lower[each];
    int top = -2, bottom = -2;
#pragma unroll 1
    for (int row = first; row < min(first + ROWS, oh); ++row, to += ow) {
        const float place = position(row, float(h) / oh);
        const int above = min(int(place), h - 1), below = min(above + 1, h - 1);
        if (above != top) {  // the same for all lanes
            if (above == bottom) {
#pragma unroll
                for (int v = 0; v < each; ++v) upper[v] = lower[v];
            } else {
                along(upper, above);
            }
        }
        if (below != bottom) along(lower, below);
        top = above, bottom = below;
        const float low = fminf(place - above, 1.0f), high = 1.0f - low;
#pragma unroll
        for (int v = 0; v < each; ++v) {
            if (column + 32 * v < ow) to[32 * v] = out_t(high * upper[v] + low * lower[v]);
        }
    }
}
