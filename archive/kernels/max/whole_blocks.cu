/*---
op = "max"
note = "one block per row, 16-byte loads, several of them on their way at once in each thread; the largest of a load is found in pairs, and only if it exceeds what the thread had before, its place; any shape"

[knobs]
THREADS = [256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "max_of_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "values", "indices", "cols"]
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

// A thread meets its vectors in order.
__device__ __forceinline__ void take(Best& best, const Vec& v, int col) {
    const float value = largest_in<x_t>(v);
    if (!is_greater(value, best.value)) return;
    int e = VEC - 1;
#pragma unroll
    for (int j = VEC - 2; j >= 0; --j) e = !is_greater(value, float(v.at[j])) ? j : e;
    best = {value, col + e};
}

extern "C" __global__ void __launch_bounds__(THREADS)
max_of_row(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices, int cols) {
    __shared__ Best bests[32];
    const long long first = (long long)blockIdx.x * cols;
    const x_t* row = x + first;
    const int head = min(cols, int((VEC - first % VEC) % VEC));  // what stands before the row's first whole 16 bytes
    const int packs = (cols - head) / VEC, tail = head + packs * VEC;
    const Vec* vectors = reinterpret_cast<const Vec*>(row + head);
    const Best none = {-INFINITY, 0};  // in a row of nothing but -inf the first counts
    Best best = none;
    int at = threadIdx.x;
    for (; at + (UNROLL - 1) * THREADS < packs; at += UNROLL * THREADS) {
        Vec v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) v[i] = vectors[at + i * THREADS];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) take(best, v[i], head + (at + i * THREADS) * VEC);
    }
    for (; at < packs; at += THREADS) take(best, vectors[at], head + at * VEC);
    if (threadIdx.x < head) best = better(best, {float(row[threadIdx.x]), int(threadIdx.x)});
    const int last = tail + threadIdx.x;
    if (last < cols) best = better(best, {float(row[last]), last});
    const int lane = threadIdx.x % 32;
    best = best_of_warp(best);
    if (lane == 0) bests[threadIdx.x / 32] = best;
    __syncthreads();
    best = best_of_warp(lane < THREADS / 32 ? bests[lane] : none);
    if (threadIdx.x == 0) values[blockIdx.x] = row[best.index], indices[blockIdx.x] = best.index;
}
