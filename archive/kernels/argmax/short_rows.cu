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
struct alignas(16) Vec { x_t at[VEC]; };

struct Best {
    float value;
    int index;
};

// NaN is greater than every number.
__device__ __forceinline__ bool is_greater(float a, float b) { return !(a <= b) && b == b; }

// Of equal values the first.
__device__ __forceinline__ Best better(Best a, Best b) {
    return is_greater(b.value, a.value) || (!is_greater(a.value, b.value) && b.index < a.index) ? b : a;
}

__device__ __forceinline__ Best best_of_warp(Best best) {
    for (int step = 16; step > 0; step /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, step);
        best = better(best, {value, __shfl_xor_sync(0xffffffffu, best.index, step)});
    }
    return best;
}

__device__ __forceinline__ float larger(float a, float b) { return is_greater(b, a) ? b : a; }

template <class T> struct PairOf {};
template <> struct PairOf<__nv_bfloat16> { using type = __nv_bfloat162; };
template <> struct PairOf<__half> { using type = __half2; };

template <class T> __device__ __forceinline__ float largest_in(const Vec& v) {
    if constexpr (sizeof(T) == 2) {
        using Pair = typename PairOf<T>::type;
        const Pair* pairs = reinterpret_cast<const Pair*>(v.at);
        const Pair most = __hmax2_nan(__hmax2_nan(pairs[0], pairs[1]), __hmax2_nan(pairs[2], pairs[3]));
        return larger(float(most.x), float(most.y));
    } else {
        return larger(larger(float(v.at[0]), float(v.at[1])), larger(float(v.at[2]), float(v.at[3])));
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
    Best best = {-INFINITY, 0};  // in a row of nothing but -inf the first counts
#pragma unroll
    for (int i = 0; i < loads; ++i) {
        if (lane + 32 * i >= packs) continue;
        const float value = largest_in<x_t>(v[i]);
        if (!is_greater(value, best.value)) continue;
        int e = VEC - 1;
#pragma unroll
        for (int j = VEC - 2; j >= 0; --j) e = !is_greater(value, float(v[i].at[j])) ? j : e;
        best = {value, (lane + 32 * i) * VEC + e};
    }
    best = best_of_warp(best);
    if (lane == 0) out[row] = best.index;
}
