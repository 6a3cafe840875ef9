/*---
op = "upsample_bilinear_backward"
note = "each result's gradient is read once: a block walks down a strip of a plane and adds each row to the two lines of grad_x that it came from, kept in registers; a finished line goes through shared memory, already times both shares across, where each element adds up its few neighbours; no atomics; any shape; results are stored in accesses as wide as the loads"
specialize = ["h", "w", "oh", "ow", "vec", "threads", "pieces", "wide", "turns", "strips", "strip"]
require = ["(2 * 2 * ow + w + 2) * 4 <= 200 * 1024"]

[knobs]
MOST = [256, 128]
AHEAD = [4, 2, 8]
WAVES = [8, 4, 16]

[let]
full = "16 // itemsize(grad_out)"
vec = "min(full, 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8)))"
wide = "1 + (1 - min(1, w % 2))"
threads = "min(MOST, 32 * ceil_div(max(ceil_div(ow, vec), ceil_div(w, 4)), 32))"
pieces = "ceil_div(ow, vec * threads)"
turns = "ceil_div(w, wide * threads)"
strips = "max(1, min(ceil_div(h, 16), ceil_div(sms * WAVES * 2, batch * channels)))"
strip = "ceil_div(h, strips)"

[[launch]]
entry = "upsample_bilinear_backward"
grid = ["batch * channels * strips"]
block = ["threads"]
shared = "(2 * 2 * ow + w + 2) * 4"
args = ["grad_out", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
extern __shared__ float memory[];

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
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

extern "C" __global__ void __launch_bounds__(threads)
upsample_bilinear_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x) {
    constexpr float down = float(h) / oh, across = float(w) / ow;
    float* const near_and_far = memory;                             // [2][2][ow], for two lines in turn
    int* const begins = reinterpret_cast<int*>(memory + 4 * ow);    // where the results behind each column begin
    const int plane = blockIdx.x / strips, first_line = blockIdx.x % strips * strip, end_line = min(first_line + strip, h);
    if (first_line >= h) return;
    for (int c = threadIdx.x; c < w + 2; c += threads) begins[c] = first_behind(c - 1, w, ow, across);
    float far_of[pieces][vec];
    bool last_of[pieces][vec];
#pragma unroll
    for (int p = 0; p < pieces; ++p) {
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            const int j = (p * threads + threadIdx.x) * vec + e;
            last_of[p][e] = line_of(j, w, across, far_of[p][e]) == w - 1;
        }
    }
    const grad_out_t* const from = grad_out + (long long)plane * oh * ow;
    grad_x_t* const to = grad_x + (long long)plane * h * w;
    float own[pieces][vec] = {}, next[pieces][vec] = {};
    int line = max(first_line - 1, 0), turn = 0;
    const auto finish = [&]() {  // the line in `own`
        if (line >= first_line) {
            float* const near = near_and_far + turn * 2 * ow;
            turn ^= 1;
#pragma unroll
            for (int p = 0; p < pieces; ++p) {
                const int j = (p * threads + threadIdx.x) * vec;
                if (j >= ow) continue;
                Pack<float, vec> nearer, farther;
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    nearer.at[e] = last_of[p][e] ? own[p][e] : own[p][e] * (1.0f - far_of[p][e]);
                    farther.at[e] = own[p][e] * far_of[p][e];
                }
                *reinterpret_cast<Pack<float, vec>*>(near + j) = nearer;
                *reinterpret_cast<Pack<float, vec>*>(near + ow + j) = farther;
            }
            __syncthreads();
#pragma unroll
            for (int t = 0; t < turns; ++t) {
                const int c = (t * threads + threadIdx.x) * wide;
                if (c >= w) continue;
                Pack<grad_x_t, wide> made;
                int begin = begins[c], middle = begins[c + 1];
#pragma unroll
                for (int e = 0; e < wide; ++e) {
                    const int end = begins[c + e + 2];
                    float left = 0.0f, right = 0.0f;
                    if (c + e > 0) {
                        for (int j = begin; j < middle; ++j) left += near[ow + j];
                    }
                    for (int j = middle; j < end; ++j) right += near[j];
                    made.at[e] = grad_x_t(left + right);
                    begin = middle, middle = end;
                }
                write(to + (long long)line * w + c, made);
            }
        }
#pragma unroll
        for (int p = 0; p < pieces; ++p) {
#pragma unroll
            for (int e = 0; e < vec; ++e) own[p][e] = next[p][e], next[p][e] = 0.0f;
        }
        ++line;
    };
    __syncthreads();
    const int top = first_behind(line, h, oh, down), bottom = first_behind(end_line, h, oh, down);
    for (int begin = top; begin < bottom; begin += AHEAD) {
        Pack<grad_out_t, vec> held[AHEAD][pieces];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
#pragma unroll
            for (int p = 0; p < pieces; ++p) {
                const int j = (p * threads + threadIdx.x) * vec;
                if (begin + a < bottom && j < ow) {
                    held[a][p] = *reinterpret_cast<const Pack<grad_out_t, vec>*>(from + (long long)(begin + a) * ow + j);
                } else {
                    held[a][p] = Pack<grad_out_t, vec>{};
                }
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            if (begin + a >= bottom) break;
            float far;
            const int first = line_of(begin + a, h, down, far);
            while (line < first) finish();
            const float near = first == h - 1 ? 1.0f : 1.0f - far;
#pragma unroll
            for (int p = 0; p < pieces; ++p) {
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    const float one = float(held[a][p].at[e]);
                    own[p][e] = fmaf(near, one, own[p][e]);
                    next[p][e] = fmaf(far, one, next[p][e]);
                }
            }
        }
    }
    while (line < end_line) finish();
}
