/*---
op = "upsample_bilinear"
note = "sizes doubled, or 4 or 8 times as large: all weights are constants, a thread makes up to 16 bytes of a row from one wide load and the values on either side of it, and walks down the rows of the input; each is interpolated along once, for all rows of the result above and below it, while the next one is on its way; results are stored in accesses as wide as the loads"
when = "(ow == 2 * w or ow == 4 * w or ow == 8 * w) and oh * w == h * ow and ow * itemsize(x) <= 16 * w and h * w < 16777216"
specialize = ["h", "w", "oh", "ow", "vec", "bands", "chunks", "total"]

[knobs]
GAPS = [8, 4, 16, 32]
THREADS = [128, 256]

[let]
vec = "min(16 // itemsize(x), 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8)))"
bands = "ceil_div(h, GAPS)"
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

constexpr int FACTOR = ow / w, VEC = vec, BODY = VEC / FACTOR;
using index = decltype(total + 0);
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };
struct Piece { x_t left; Pack<x_t, BODY> body; x_t right; };  // of a row

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ void store(out_t* to, const float (&upper)[VEC], const float (&lower)[VEC], float low) {
    Pack<out_t, VEC> result;
#pragma unroll
    for (int v = 0; v < VEC; v += 2) {
        put(&result.at[v], (1.0f - low) * upper[v] + low * lower[v], (1.0f - low) * upper[v + 1] + low * lower[v + 1]);
    }
    write(to, result);
}

// A piece of a row along its own direction.
__device__ __forceinline__ void along(float (&line)[VEC], const Piece& piece) {
    float near[BODY + 2];
    near[0] = float(piece.left), near[BODY + 1] = float(piece.right);
#pragma unroll
    for (int b = 0; b < BODY; ++b) near[b + 1] = float(piece.body.at[b]);
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
        const int part = v % FACTOR, behind = part >= FACTOR / 2;
        const float far = (part + 0.5f) / FACTOR + (behind ? -0.5f : 0.5f);
        line[v] = (1.0f - far) * near[v / FACTOR + behind] + far * near[v / FACTOR + behind + 1];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
interpolate(const x_t* __restrict__ x, out_t* __restrict__ out) {
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int chunk = int(at % chunks), first = int(at / chunks % bands) * GAPS, end = min(first + GAPS, h);
    const long long map = at / chunks / bands;
    const x_t* const from = x + map * (h * w) + chunk * BODY;
    const int before = chunk > 0 ? -1 : 0, behind = chunk < chunks - 1 ? BODY : BODY - 1;
    out_t* to = out + map * ((long long)oh * ow) + first * FACTOR * ow + chunk * VEC;
    const auto fetch = [&](int row) {
        const x_t* const here = from + min(row, h - 1) * w;
        return Piece{here[before], *reinterpret_cast<const Pack<x_t, BODY>*>(here), here[behind]};
    };
    const Piece begin = fetch(first);
    Piece next = fetch(first + 1);
    float upper[VEC];
    along(upper, begin);
    if (first == 0) {
#pragma unroll
        for (int row = 0; row < FACTOR / 2; ++row) store(to + row * ow, upper, upper, 0.0f);
    }
    to += FACTOR / 2 * ow;
    // Between a row of the input and the next lie as many rows of the result as the factor; below the last, half as many.
#pragma unroll 2
    for (int row = first; row < end; ++row) {
        const Piece now = next;
        next = fetch(row + 2);
        float lower[VEC];
        along(lower, now);
#pragma unroll
        for (int part = 0; part < FACTOR; ++part) {
            if (row < h - 1 || part < FACTOR / 2) store(to + part * ow, upper, lower, (part + 0.5f) / FACTOR);
        }
        to += FACTOR * ow;
#pragma unroll
        for (int v = 0; v < VEC; ++v) upper[v] = lower[v];
    }
}
