/*---
op = "local_response_norm_backward"
note = "one launch: a thread walks through the channels of a few pixels and keeps sums of two neighbouring squares and of two neighbouring shares, of which a window adds up every second; the power is 2 ** (-beta * log2) by the fast instructions and one Newton step, which also gives the reciprocal; the next channels are loaded meanwhile"
when = "size <= 8 and batch * channels * height * width < 4294000000"
specialize = ["size", "channels", "area", "vec", "turns", "packs", "chunk", "ahead"]

[knobs]
CHANNELS = [128, 32, 64]
PER = [2, 1, 4]
AHEAD = [4, 2, 8]
THREADS = [128, 256]

[let]
area = "height * width"
full = "min(PER, 16 // itemsize(x))"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)))"
packs = "area // vec"
ahead = "max(2, AHEAD // vec * 2)"
most = "min(CHANNELS, max(8, ceil_div(batch * packs * channels, sms * 1024)))"
chunk = "ceil_div(channels, ceil_div(channels, most))"
turns = "ceil_div(channels, chunk)"

[[launch]]
entry = "gradient"
grid = ["ceil_div(batch * turns * packs, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "batch * turns * packs", "alpha", "beta", "k"]
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

// How a power is found: by powf, or fast with a Newton step for a beta of 0.75 or 0.5. Without that step the error would be
// several roundings, too much also in 16 bits where the two terms of the gradient cancel.
enum Way { ANY, THREE_QUARTERS, HALF };

// Not inlined, for else this rare case needs most of the registers.
__device__ __noinline__ float any_power(float base, float beta) { return powf(base, -beta); }

// base ** -beta, and 1 / base as the product of two values; except for ANY, base is NaN or at least 1e-18, and beta at
// most 0.75, so that neither the power nor the two values are subnormal.
template <Way WAY> __device__ __forceinline__ float power(float base, float beta, float& once, float& again) {
    if constexpr (WAY == ANY) {
        once = 1.0f / base, again = 1.0f;
        return any_power(base, beta);
    }
    const float digits = __log2f(base);
    float near;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(-beta * digits));
    // Where base is infinite and `near` zero, products of the two are NaN; fminf then takes the other value.
    const float root = near * (WAY == HALF ? 1.0f : fminf(near * base, FLT_MAX));  // base ** -0.5
    const float error = fminf(fmaf(-root * root, base, 1.0f), 0.5f);
    once = fmaf(0.5f * root, error, root), again = once;
    return fmaf((WAY == HALF ? 0.5f : 0.25f) * near, error, near);
}

// Sums of values of two neighbouring channels, up to the newest, which is held alone as well.
struct Window {
    float pairs[PAIRS][vec] = {}, last[vec] = {};
    __device__ __forceinline__ void push(int e, float value) {
#pragma unroll
        for (int i = 0; i + 1 < PAIRS; ++i) pairs[i][e] = pairs[i + 1][e];
        pairs[PAIRS - 1][e] = last[e] + value;
        last[e] = value;
    }
    __device__ __forceinline__ float sum(int e) const {
        float all = size % 2 ? last[e] : 0.0f;
#pragma unroll
        for (int i = size - 2 - size % 2; i >= 0; i -= 2) all = i == size - 2 ? pairs[i][e] : all + pairs[i][e];
        return all;
    }
};

template <class T> __device__ __forceinline__ Pack<T> read(const T* image, int c) {
    if (c < 0 || c >= channels) return Pack<T>{};
    return *reinterpret_cast<const Pack<T>*>(image + (long long)c * area);
}

template <class T> __device__ __forceinline__ void fetch(Pack<T> (&next)[ahead], const T* image, int c) {
    if (c >= 0 && c + ahead <= channels) {
        const T* from = image + (long long)c * area;
#pragma unroll
        for (int a = 0; a < ahead; ++a) next[a] = *reinterpret_cast<const Pack<T>*>(from + (long long)a * area);
    } else {
#pragma unroll
        for (int a = 0; a < ahead; ++a) next[a] = read(image, c + a);
    }
}

template <Way WAY> __device__ __forceinline__ void
walk(const grad_out_t* __restrict__ grads, const x_t* __restrict__ image, grad_x_t* __restrict__ to, int begin,
     float alpha, float beta, float k) {
    const int end = min(begin + chunk, channels);
    const float share = alpha / size, factor = 2.0f * alpha * beta / size;
    // At channel j, seen[i] is x of channel j - BEFORE + i, own[i] is grad_out times the power of that channel, the
    // squares reach to channel j + BEHIND and the shares to channel j.
    Window squares, shares;
    Pack<x_t> seen[size], next[ahead];
    Pack<grad_out_t> next_grads[ahead];
    float own[BEFORE + 1][vec] = {};
    const int from = begin - BEHIND;
    fetch(next, image, from + BEHIND);
    fetch(next_grads, grads, from);
#pragma unroll
    for (int i = 0; i < size - 1; ++i) {
        seen[i + 1] = read(image, from - BEFORE + i);
#pragma unroll
        for (int e = 0; e < vec; ++e) squares.push(e, float(seen[i + 1].at[e]) * float(seen[i + 1].at[e]));
    }
    for (int first = from; first < end + BEFORE; first += ahead) {
        Pack<x_t> now[ahead];
        Pack<grad_out_t> grad[ahead];
#pragma unroll
        for (int a = 0; a < ahead; ++a) now[a] = next[a], grad[a] = next_grads[a];
        if (first + ahead < end + BEFORE) {
            fetch(next, image, first + ahead + BEHIND);
            fetch(next_grads, grads, first + ahead);
        }
#pragma unroll
        for (int a = 0; a < ahead; ++a) {
            const int j = first + a, c = j - BEFORE;
            const bool there = j >= 0 && j < channels;  // if not, NaN in its window would reach windows of channels
#pragma unroll
            for (int i = 0; i < size - 1; ++i) seen[i] = seen[i + 1];
            seen[size - 1] = now[a];
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                squares.push(e, float(now[a].at[e]) * float(now[a].at[e]));
#pragma unroll
                for (int i = 0; i < BEFORE; ++i) own[i][e] = own[i + 1][e];
                float once, again;
                own[BEFORE][e] = float(grad[a].at[e]) * power<WAY>(fmaf(squares.sum(e), share, k), beta, once, again);
                const float part = (own[BEFORE][e] * once) * (float(seen[BEFORE].at[e]) * again);
                shares.push(e, there ? part : 0.0f);
                result[e] = own[0][e] - factor * float(seen[0].at[e]) * shares.sum(e);
            }
            if (c >= begin && c < end) store(to + (long long)c * area, result);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gradient(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x,
         long long total, float alpha, float beta, float k) {
    const unsigned at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const unsigned pack = at % packs, turn = at / packs % turns, image = at / packs / turns;
    const long long start = (long long)image * ((long long)channels * area) + pack * vec;
    const int begin = turn * chunk;
    grad_out += start, x += start, grad_x += start;
    const bool plain = k >= 1e-18f && alpha >= 0.0f;  // the base is then positive and normal, or NaN
    if (plain && beta == 0.75f) return walk<THREE_QUARTERS>(grad_out, x, grad_x, begin, alpha, beta, k);
    if (plain && beta == 0.5f) return walk<HALF>(grad_out, x, grad_x, begin, alpha, beta, k);
    walk<ANY>(grad_out, x, grad_x, begin, alpha, beta, k);
}
