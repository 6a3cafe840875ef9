/*---
op = "upsample_bilinear_backward"
note = "for rows of odd widths that had been made at least twice as wide: a warp makes some columns of a band of grad_x without waiting for others: it reads what has a share of them side by side, 32 results an access wherever rows begin, and adds each row to the two lines it came from in registers; for a finished line, each lane adds up the results between two columns from shared memory, beginning at a different one than its neighbours, so that their banks differ, and its neighbour adds the share of the column behind"
when = "ow >= 2 * w and ow <= 40 * w and ow * itemsize(grad_out) % 8 != 0 and ow < 1048576"
specialize = ["h", "w", "oh", "ow", "cols", "each", "per_row", "strip", "bands", "total"]

[knobs]
LINES = [8, 16, 32]
AHEAD = [4, 2, 8]
EACH = [8, 4]
WARPS = [4, 8]

[let]
per_row = "ceil_div(w, min(30, (32 * EACH - 2) * w // ow - 1))"
cols = "ceil_div(w, per_row)"
each = "ceil_div(min(ow, ceil_div((cols + 1) * ow, w) + 2), 32)"
strip = "ceil_div(h, ceil_div(h, LINES))"
bands = "ceil_div(h, strip)"
total = "batch * channels * bands * per_row"

[[launch]]
entry = "gather"
grid = ["ceil_div(total, WARPS)"]
block = ["32 * WARPS"]
args = ["grad_out", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using index = decltype(total + 0);

// The line of grad_x that a result lies behind, and its distance from it. Behind the last line all of it counts there.
__device__ __forceinline__ int line_of(int i, int size, float scale, float& far) {
    const float position = fmaxf((i + 0.5f) * scale - 0.5f, 0.0f);
    const int first = min(int(position), size - 1);
    far = fminf(position - first, 1.0f);
    return first;
}

__device__ __forceinline__ int first_behind(int line, int size, int results, float scale) {
    if (line <= 0) return 0;
    if (line >= size) return results;
    int i = min(max(int(floorf((line + 0.5f) / scale - 0.5f)) - 1, 0), results);
    float far;
    while (i < results && line_of(i, size, scale, far) < line) ++i;
    return i;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
gather(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x) {
    constexpr float down = float(h) / oh, across = float(w) / ow;
    __shared__ float2 shares[WARPS][each * 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const index at = (index)blockIdx.x * WARPS + warp;
    if (at >= total) return;  // the whole warp
    const int column = int(at % per_row) * cols - 1 + lane;  // the one before this lane's results
    const int first_line = int(at / per_row % bands) * strip, end_line = min(first_line + strip, h);
    const long long map = at / per_row / bands;
    const int behind = first_behind(column, w, ow, across), begin = __shfl_sync(0xffffffffu, behind, 0);
    const int stop = __shfl_sync(0xffffffffu, behind, cols + 1) - begin;  // the number of the warp's results
    const int after = __shfl_down_sync(0xffffffffu, behind, 1);
    const int count = lane <= cols ? after - behind : 0;
    const float2* const segment = shares[warp] + (count > 0 ? behind - begin : 0);
    const float2* const segment_end = segment + count;
    const float2* const start = count > 0 ? segment + lane % count : segment;
    const bool writes = lane > 0 && lane <= cols && column < w;
    const grad_out_t* const from = grad_out + map * ((long long)oh * ow) + begin + lane;
    grad_x_t* to = grad_x + map * ((long long)h * w) + (long long)first_line * w + column;
    float near_of[each], far_of[each], own[each] = {}, next[each] = {};
#pragma unroll
    for (int k = 0; k < each; ++k) {
        const int last = line_of(begin + lane + 32 * k, w, across, far_of[k]) == w - 1;
        near_of[k] = last ? 1.0f : 1.0f - far_of[k];
    }
    int line = max(first_line - 1, 0);
    const auto finish = [&]() {  // the line in `own`
        if (line >= first_line) {
#pragma unroll
            for (int k = 0; k < each; ++k) {
                shares[warp][lane + 32 * k] = make_float2(own[k] * near_of[k], own[k] * far_of[k]);
            }
            __syncwarp();
            float near = 0.0f, far = 0.0f;
            const float2* one = start;
#pragma unroll 4
            for (int t = 0; t < count; ++t) {
                near += one->x, far += one->y;
                if (++one == segment_end) one = segment;
            }
            __syncwarp();
            far = __shfl_up_sync(0xffffffffu, far, 1);
            if (writes) *to = grad_x_t(near + far);
            to += w;
        }
#pragma unroll
        for (int k = 0; k < each; ++k) own[k] = next[k], next[k] = 0.0f;
        ++line;
    };
    const int top = first_behind(line, h, oh, down), bottom = first_behind(end_line, h, oh, down);
#pragma unroll 1
    for (int row = top; row < bottom; row += AHEAD) {
        grad_out_t held[AHEAD][each];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const grad_out_t* const here = from + (long long)(row + a) * ow;
#pragma unroll
            for (int k = 0; k < each; ++k) {
                held[a][k] = grad_out_t(0.0f);
                if (lane + 32 * k < stop && row + a < bottom) held[a][k] = here[32 * k];
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            if (row + a >= bottom) break;
            float far;
            const int first = line_of(row + a, h, down, far);
#pragma unroll 1
            while (line < first) finish();
            const float near = first == h - 1 ? 1.0f : 1.0f - far;
#pragma unroll
            for (int k = 0; k < each; ++k) {
                own[k] = fmaf(near, float(held[a][k]), own[k]);
                next[k] = fmaf(far, float(held[a][k]), next[k]);
            }
        }
    }
#pragma unroll 1
    while (line < end_line) finish();
}
