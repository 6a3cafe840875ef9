/*---
op = "local_response_norm"
note = "a thread walks through the channels of a few pixels and keeps sums of two neighbouring squares, of which a window adds up every second; the power is 2 ** (-beta * log2) by the fast instructions, in float32 followed by one Newton step; the next channels are loaded meanwhile"
when = "size <= 8 and batch * channels * height * width < 4294000000"
specialize = ["size", "channels", "area", "vec", "turns", "packs", "chunk", "ahead"]

[knobs]
CHANNELS = [64, 32, 128]
PER = [4, 2, 8]
AHEAD = [8, 4]
THREADS = [128, 256]

[let]
area = "height * width"
full = "min(PER, 16 // itemsize(x))"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"
packs = "area // vec"
ahead = "max(4, min(AHEAD, 64 // (vec * itemsize(x))))"
most = "min(CHANNELS, max(ahead, ceil_div(batch * packs * channels, sms * 2048)))"
chunk = "ceil_div(ceil_div(channels, ceil_div(channels, most)), ahead) * ahead"
turns = "ceil_div(channels, chunk)"

[[launch]]
entry = "normalise"
grid = ["ceil_div(batch * turns * packs, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "batch * turns * packs", "alpha", "beta", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int BEFORE = size / 2;
constexpr int BEHIND = (size - 1) / 2;
constexpr int PAIRS = size > 1 ? size - 1 : 1;
template <class T> struct alignas(sizeof(T) * vec) Pack { T at[vec]; };
template <int BYTES> struct Raw;  // the word in which a pack is stored, for the compiler may store a struct in parts
template <> struct Raw<2> { using type = unsigned short; };
template <> struct Raw<4> { using type = unsigned; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<16> { using type = uint4; };

template <class T> __device__ __forceinline__ void store(T* to, const float (&from)[vec]) {
    union {
        typename Raw<sizeof(T) * vec>::type raw;
        T at[vec];
    } result;
#pragma unroll
    for (int e = 0; e < vec; ++e) result.at[e] = T(from[e]);
    *reinterpret_cast<typename Raw<sizeof(T) * vec>::type*>(to) = result.raw;
}

// How a power is found: by powf, fast as 16 bits need it, or fast with a Newton step for a beta of 0.75 or 0.5.
enum Way { ANY, COARSE, THREE_QUARTERS, HALF };

// Not inlined, for else this rare case needs most of the registers.
__device__ __noinline__ float any_power(float base, float beta) { return powf(base, -beta); }

// base ** -beta; except for ANY, base is NaN or at least 1e-18, and beta at most 0.75, so that no result is subnormal.
template <Way WAY> __device__ __forceinline__ float power(float base, float beta) {
    if constexpr (WAY == ANY) return any_power(base, beta);
    float near;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(-beta * __log2f(base)));
    if constexpr (WAY == COARSE) return near;
    const float quarter = near * base, root = near * (WAY == HALF ? 1.0f : quarter);  // root is base ** -0.5
    const float error = fmaf(-root * root, base, 1.0f);
    // The error is NaN where base is infinite and `near` zero; fminf then takes the other value.
    return fmaf((WAY == HALF ? 0.5f : 0.25f) * near, fminf(error, 0.5f), near);
}

// Sums of squares of two neighbouring channels, up to the newest, which is held alone as well.
struct Window {
    float pairs[PAIRS][vec] = {}, last[vec] = {};
    __device__ __forceinline__ void push(const Pack<x_t>& values) {
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            const float value = float(values.at[e]), square = value * value;
#pragma unroll
            for (int i = 0; i + 1 < PAIRS; ++i) pairs[i][e] = pairs[i + 1][e];
            pairs[PAIRS - 1][e] = last[e] + square;
            last[e] = square;
        }
    }
    __device__ __forceinline__ float sum(int e) const {
        float all = size % 2 ? last[e] : 0.0f;
#pragma unroll
        for (int i = size - 2 - size % 2; i >= 0; i -= 2) all = i == size - 2 ? pairs[i][e] : all + pairs[i][e];
        return all;
    }
};

__device__ __forceinline__ Pack<x_t> read(const x_t* image, int c) {
    if (c < 0 || c >= channels) return Pack<x_t>{};
    return *reinterpret_cast<const Pack<x_t>*>(image + (long long)c * area);
}

__device__ __forceinline__ void fetch(Pack<x_t> (&next)[ahead], const x_t* image, int c) {
    if (c + ahead <= channels) {
        const x_t* from = image + (long long)c * area;
#pragma unroll
        for (int a = 0; a < ahead; ++a) next[a] = *reinterpret_cast<const Pack<x_t>*>(from + (long long)a * area);
    } else {
#pragma unroll
        for (int a = 0; a < ahead; ++a) next[a] = read(image, c + a);
    }
}

template <Way WAY> __device__ __forceinline__ void
walk(const x_t* __restrict__ image, out_t* __restrict__ to, int begin, float alpha, float beta, float k) {
    const int end = min(begin + chunk, channels);
    const float share = alpha / size;
    Window window;
    Pack<x_t> seen[BEHIND + 1];  // of channels c to c + BEHIND
    Pack<x_t> next[ahead];
    fetch(next, image, begin + BEHIND);
#pragma unroll
    for (int i = 1 - size; i < 0; ++i) {
        const Pack<x_t> values = read(image, begin + BEHIND + i);
        window.push(values);
        if (i >= -BEHIND) seen[BEHIND + 1 + i] = values;
    }
    for (int first = begin; first < end; first += ahead) {
        Pack<x_t> now[ahead];
#pragma unroll
        for (int a = 0; a < ahead; ++a) now[a] = next[a];
        if (first + ahead < end) fetch(next, image, first + ahead + BEHIND);
        out_t* const group = to + (long long)first * area;
#pragma unroll
        for (int a = 0; a < ahead; ++a) {
            window.push(now[a]);
#pragma unroll
            for (int i = 0; i < BEHIND; ++i) seen[i] = seen[i + 1];
            seen[BEHIND] = now[a];
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                result[e] = float(seen[0].at[e]) * power<WAY>(fmaf(window.sum(e), share, k), beta);
            }
            if (channels % chunk == 0 || first + a < end) store(group + (long long)a * area, result);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
normalise(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, float alpha, float beta, float k) {
    const unsigned at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const unsigned pack = at % packs, turn = at / packs % turns, image = at / packs / turns;
    const long long start = (long long)image * ((long long)channels * area) + pack * vec;
    const int begin = turn * chunk;
    const bool plain = k >= 1e-18f && alpha >= 0.0f;  // the base is then positive and normal, or NaN
    if constexpr (sizeof(x_t) == 2) {
        if (plain && beta >= 0.0f && beta <= 0.75f) return walk<COARSE>(x + start, out + start, begin, alpha, beta, k);
    } else {
        if (plain && beta == 0.75f) return walk<THREE_QUARTERS>(x + start, out + start, begin, alpha, beta, k);
        if (plain && beta == 0.5f) return walk<HALF>(x + start, out + start, begin, alpha, beta, k);
    }
    walk<ANY>(x + start, out + start, begin, alpha, beta, k);
}
