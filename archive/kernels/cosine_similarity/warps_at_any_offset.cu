/*---
op = "cosine_similarity"
note = "a warp per row, without a barrier, wherever the row begins: its whole 16-byte pieces are loaded several at once, the few values before the first and behind the last piece are of one lane each; three sums in one pass; a row whose products vanish is read again"
when = "cols * itemsize(x) >= 128"
specialize = ["cols", "pieces"]

[knobs]
PIECES = [4, 2, 5]
WARPS = [4, 2, 8]

[let]
pieces = "min(PIECES, ceil_div(cols * itemsize(x) // 16, 32))"

[[launch]]
entry = "cosine_of_rows"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "y", "out", "rows", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
union Pack {
    uint4 raw;
    x_t at[VEC];
};

__device__ __forceinline__ float sum_of_warp(float sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
cosine_of_rows(const x_t* __restrict__ x, const y_t* __restrict__ y, out_t* __restrict__ out, long long rows, float eps) {
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32, start = row * cols;
    if (row >= rows) return;  // the whole warp
    const int lane = threadIdx.x % 32;
    const x_t* const of_x = x + start;
    const y_t* const of_y = y + start;
    int head = 0, count = cols / VEC, single = -1;  // the column in no whole piece that is this lane's
    if constexpr (cols % VEC != 0) {
        const int ahead = int(-start & (VEC - 1));
        head = ahead < cols ? ahead : cols;
        count = (cols - head) / VEC;
        const int tail = cols - head - count * VEC, at = lane % VEC;
        if (lane < VEC && at < head) single = at;
        if (lane / VEC == 1 && at < tail) single = cols - tail + at;
    }
    float dot = 0.0f, xx = 0.0f, yy = 0.0f;
    const uint4* const one = reinterpret_cast<const uint4*>(of_x + head);
    const uint4* const two = reinterpret_cast<const uint4*>(of_y + head);
#pragma unroll 1
    for (int begin = lane; begin - lane < count; begin += 32 * pieces) {
        Pack a[pieces], b[pieces];
#pragma unroll
        for (int p = 0; p < pieces; ++p) {
            a[p].raw = b[p].raw = make_uint4(0, 0, 0, 0);
            if (begin + p * 32 < count) a[p].raw = one[begin + p * 32], b[p].raw = two[begin + p * 32];
        }
#pragma unroll
        for (int p = 0; p < pieces; ++p) {
            float few = 0.0f, few_xx = 0.0f, few_yy = 0.0f;  // sums of sums are more exact
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                const float of_a = float(a[p].at[e]), of_b = float(b[p].at[e]);
                few = fmaf(of_a, of_b, few);
                few_xx = fmaf(of_a, of_a, few_xx);
                few_yy = fmaf(of_b, of_b, few_yy);
            }
            dot += few, xx += few_xx, yy += few_yy;
        }
    }
    if (single >= 0) {
        const float of_a = float(of_x[single]), of_b = float(of_y[single]);
        dot = fmaf(of_a, of_b, dot), xx = fmaf(of_a, of_a, xx), yy = fmaf(of_b, of_b, yy);
    }
    dot = sum_of_warp(dot), xx = sum_of_warp(xx), yy = sum_of_warp(yy);
    const float length_x = fmaxf(sqrtf(xx), eps), length_y = fmaxf(sqrtf(yy), eps);
    float result = dot / length_x / length_y;
    if (sqrtf(xx) * sqrtf(yy) < 1e-24f) {  // some products have vanished
        result = 0.0f;
        for (int col = lane; col < cols; col += 32) {
            result = fmaf(float(of_x[col]) / length_x, float(of_y[col]) / length_y, result);
        }
        result = sum_of_warp(result);
    }
    if (lane == 0) out[row] = out_t(result);
}
