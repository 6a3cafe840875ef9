/*---
op = "upsample_bilinear"
note = "a thread makes a strip of neighbouring columns, as many as fill 16 bytes, and walks down some rows: it interpolates along a row of the input once and uses that for all results that lie between the row and the next"
specialize = ["h", "w", "oh", "ow", "vec", "bands", "chunks", "total"]

[knobs]
ROWS = [8, 4, 16, 32]
PER = [8, 2, 4]
THREADS = [128, 256]

[let]
vec = "min(min(PER, 16 // itemsize(x)), 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8)))"
bands = "ceil_div(oh, ROWS)"
chunks = "ow // vec"
total = "batch * channels * bands * chunks"

[[launch]]
entry = "interpolate"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["x", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using index = decltype(total + 0);
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

template <class T> __device__ __forceinline__ void store(T* to, const float (&from)[vec]) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e + 1 < vec; e += 2) put(&result.at[e], from[e], from[e + 1]);
    if constexpr (vec == 1) result.at[0] = T(from[0]);
    *reinterpret_cast<Pack<T>*>(to) = result;
}

__device__ __forceinline__ float position(int i, float scale) { return fmaxf((i + 0.5f) * scale - 0.5f, 0.0f); }

extern "C" __global__ void __launch_bounds__(THREADS)
interpolate(const x_t* __restrict__ x, out_t* __restrict__ out) {
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int column = int(at % chunks) * vec, first = int(at / chunks % bands) * ROWS;
    const long long map = at / chunks / bands;
    const x_t* plane = x + map * ((long long)h * w);
    out_t* to = out + map * ((long long)oh * ow) + column;
    int left[vec], right[vec];
    float far[vec];
#pragma unroll
    for (int v = 0; v < vec; ++v) {
        const float place = position(column + v, float(w) / ow);
        left[v] = min(int(place), w - 1), right[v] = min(left[v] + 1, w - 1);
        far[v] = fminf(place - left[v], 1.0f);
    }
    const auto along = [&](float (&line)[vec], int row) {
        const x_t* from = plane + (long long)row * w;
        x_t a[vec], b[vec];
#pragma unroll
        for (int v = 0; v < vec; ++v) a[v] = from[left[v]], b[v] = from[right[v]];
#pragma unroll
        for (int v = 0; v < vec; ++v) line[v] = (1.0f - far[v]) * float(a[v]) + far[v] * float(b[v]);
    };
    float upper[vec], lower[vec];
    int top = -2, bottom = -2;
    for (int row = first; row < min(first + ROWS, oh); ++row) {
        const float place = position(row, float(h) / oh);
        const int above = min(int(place), h - 1), below = min(above + 1, h - 1);
        if (above != top) {
            if (above == bottom) {
#pragma unroll
                for (int v = 0; v < vec; ++v) upper[v] = lower[v];
            } else {
                along(upper, above);
            }
        }
        if (below != bottom) along(lower, below);
        top = above, bottom = below;
        const float low = fminf(place - above, 1.0f);
        float result[vec];
#pragma unroll
        for (int v = 0; v < vec; ++v) result[v] = (1.0f - low) * upper[v] + low * lower[v];
        store(to + (long long)row * ow, result);
    }
}
