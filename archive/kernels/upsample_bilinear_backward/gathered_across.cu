/*---
op = "upsample_bilinear_backward"
note = "for rows that had been made narrower, or up to three times as wide but not by a whole factor: few results of a row have a share of a pixel, so a thread works out once which they are for some columns of grad_x, and walks down the rows of grad_out: it reads and adds up only those, and shares each sum between two lines of grad_x in registers; no shared memory, no barriers, any height"
when = "ow <= 3 * w and ow % w != 0 and w < 32768"
specialize = ["h", "w", "oh", "ow", "vec", "each", "spread", "strip", "bands", "total"]

[knobs]
WAVES = [2, 1, 4]
AHEAD = [4, 2, 8]
EACH = [4, 8]
THREADS = [128, 256]

[let]
vec = "min(min(4, 16 // itemsize(grad_x)), 1 + (1 - min(1, w % 2)) + 2 * (1 - min(1, w % 4)))"
spread = "ceil_div(w // vec, EACH // vec)"
each = "ceil_div(w // vec, spread)"
strip = "ceil_div(h, max(1, min(ceil_div(h, 8), ceil_div(sms * WAVES * 2048, batch * channels * spread))))"
bands = "ceil_div(h, strip)"
total = "batch * channels * bands * spread"

[[launch]]
entry = "gather"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The most results of a row that have a share of a column, with room for the rounding of positions.
constexpr int TAPS = 100 * w >= 202 * ow ? 1 : 100 * w >= 101 * ow ? 2 : 2 * ow / w + 2;
constexpr int OWN = each * vec;
using index = decltype(total + 0);
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else if constexpr (sizeof(T) == 4) __stcs(static_cast<unsigned*>(to), *reinterpret_cast<const unsigned*>(&from));
    else *static_cast<T*>(to) = from;
}

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

extern "C" __global__ void __launch_bounds__(THREADS)
gather(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x) {
    constexpr float down = float(h) / oh, across = float(w) / ow;
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int own_pack = int(at % spread);
    const int first_line = int(at / spread % bands) * strip, end_line = min(first_line + strip, h);
    const long long map = at / spread / bands;
    const grad_out_t* const from = grad_out + map * ((long long)oh * ow);
    grad_x_t* to = grad_x + map * ((long long)h * w) + (long long)first_line * w + own_pack * vec;
    int start[OWN], count[OWN];  // the results that have a share of a column
    float share[OWN][TAPS];
#pragma unroll
    for (int k = 0; k < each; ++k) {
        const int begin = (own_pack + k * spread) * vec;
        int j = max(int((begin - 0.5f) * (1.0f / across) - 0.5f) - 1, 0);
#pragma unroll
        for (int v = 0; v < vec; ++v) {
            const int column = begin + v, c = k * vec + v;
            float far;
            while (j < ow && line_of(j, w, across, far) < column - 1) ++j;
            start[c] = j, count[c] = 0;
#pragma unroll
            for (int t = 0; t < TAPS; ++t) {
                const int line = line_of(j + t, w, across, far);
                if (j + t < ow && line <= column && column < w) count[c] = t + 1;
                share[c][t] = line < column ? far : column == w - 1 ? 1.0f : 1.0f - far;
            }
        }
    }
    float own[OWN] = {}, next[OWN] = {};
    int line = max(first_line - 1, 0);
    const auto finish = [&]() {  // the line in `own`
        if (line >= first_line) {
#pragma unroll
            for (int k = 0; k < each; ++k) {
                Pack<grad_x_t, vec> made;
#pragma unroll
                for (int v = 0; v < vec; ++v) made.at[v] = grad_x_t(own[k * vec + v]);
                if (own_pack + k * spread < w / vec) write(to + k * spread * vec, made);
            }
            to += w;
        }
#pragma unroll
        for (int c = 0; c < OWN; ++c) own[c] = next[c], next[c] = 0.0f;
        ++line;
    };
    const int top = first_behind(line, h, oh, down), bottom = first_behind(end_line, h, oh, down);
#pragma unroll 1
    for (int begin = top; begin < bottom; begin += AHEAD) {
        grad_out_t held[AHEAD][OWN][TAPS];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const grad_out_t* const row = from + (long long)(begin + a) * ow;
#pragma unroll
            for (int c = 0; c < OWN; ++c) {
#pragma unroll
                for (int t = 0; t < TAPS; ++t) {
                    held[a][c][t] = grad_out_t(0.0f);
                    if (t < count[c] && begin + a < bottom) held[a][c][t] = row[start[c] + t];
                }
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            if (begin + a >= bottom) break;
            float far;
            const int first = line_of(begin + a, h, down, far);
#pragma unroll 1
            while (line < first) finish();
            const float near = first == h - 1 ? 1.0f : 1.0f - far;
#pragma unroll
            for (int c = 0; c < OWN; ++c) {
                float sum = 0.0f;
#pragma unroll
                for (int t = 0; t < TAPS; ++t) sum = fmaf(share[c][t], float(held[a][c][t]), sum);
                own[c] = fmaf(near, sum, own[c]);
                next[c] = fmaf(far, sum, next[c]);
            }
        }
    }
#pragma unroll 1
    while (line < end_line) finish();
}
