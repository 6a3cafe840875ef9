/*---
op = "argmax"
note = "short rows: a warp per row, so that no block waits for itself; a lane has all its 16-byte loads on their way at once"
when = "cols * itemsize(x) % 16 == 0 and cols * itemsize(x) <= 4096"
specialize = ["cols", "loads"]

[knobs]
WARPS = [4, 2, 8, 16]

[let]
loads = "ceil_div(cols * itemsize(x), 512)"

[[launch]]
entry = "argmax_rows"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "out", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
constexpr int NONE = 0x7fffffff;  // a lane that has met nothing above -inf
struct alignas(16) Vec { x_t at[VEC]; };

struct Best {
    float value;
    int index;
};

// Of equal values the first.
__device__ __forceinline__ Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

__device__ __forceinline__ Best best_of_warp(Best best) {
    for (int step = 16; step > 0; step /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, step);
        best = better(best, {value, __shfl_xor_sync(0xffffffffu, best.index, step)});
    }
    return best;
}

template <class T> struct PairOf {};
template <> struct PairOf<__nv_bfloat16> { using type = __nv_bfloat162; };
template <> struct PairOf<__half> { using type = __half2; };

template <class T> __device__ __forceinline__ float largest_in(const Vec& v) {
    if constexpr (sizeof(T) == 2) {
        using Pair = typename PairOf<T>::type;
        const Pair* pairs = reinterpret_cast<const Pair*>(v.at);
        const Pair most = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
        return fmaxf(float(most.x), float(most.y));
    } else {
        return fmaxf(fmaxf(float(v.at[0]), float(v.at[1])), fmaxf(float(v.at[2]), float(v.at[3])));
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
argmax_rows(const x_t* __restrict__ x, long long* __restrict__ out, int rows) {
    constexpr int packs = cols / VEC;
    const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp leaves
    const Vec* vectors = reinterpret_cast<const Vec*>(x + (long long)row * cols);
    Vec v[loads];
#pragma unroll
    for (int i = 0; i < loads; ++i) {
        if (lane + 32 * i < packs) v[i] = vectors[lane + 32 * i];
    }
    Best best = {-INFINITY, NONE};
#pragma unroll
    for (int i = 0; i < loads; ++i) {
        if (lane + 32 * i >= packs) continue;
        const float value = largest_in<x_t>(v[i]);
        if (value <= best.value) continue;
        int e = VEC - 1;
#pragma unroll
        for (int j = VEC - 2; j >= 0; --j) e = float(v[i].at[j]) == value ? j : e;
        best = {value, (lane + 32 * i) * VEC + e};
    }
    best = best_of_warp(best);
    if (lane == 0) out[row] = best.index == NONE ? 0 : best.index;  // all -inf: the first
}
