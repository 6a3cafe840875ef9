/*---
op = "causal_softmax"
note = "a group of threads per row, from 8 to 1024; only the keys that a query sees are read, once, by the widest loads the row allows, and stay in registers; the rest is written as zeros; results are stored in accesses as wide as the loads"
specialize = ["keys", "vec", "threads", "groups", "pieces", "chunks"]
require = ["threads * groups <= 1024", "pieces * max(1, vec * itemsize(x) // 4) * threads * groups <= 32768"]

[knobs]
ROW_LOADS = [2, 1, 4, 8]
HELD = [4, 2, 8]
BLOCK = [128, 256, 512]

[let]
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, keys % 2)) + 2 * (1 - min(1, keys % 4)) + 4 * (1 - min(1, keys % 8)))"
loads = "min(16, ROW_LOADS * full // vec)"
need = "ceil_div(keys, vec * loads)"
lanes = "8 + 8 * min(1, (need - 1) // 8) + 16 * min(1, (need - 1) // 16)"
threads = "min(1024, lanes * ceil_div(need, 32))"
groups = "max(1, BLOCK // threads)"
all = "ceil_div(keys, threads * vec)"
pieces = "min(all, max(loads, min(16, HELD * full // vec)))"
chunks = "ceil_div(all, pieces)"
rows = "batch * heads * queries"

[[launch]]
entry = "causal_softmax_rows"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
args = ["x", "out", "rows", "queries", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int LANES = threads < 32 ? threads : 32, WARPS = (threads + 31) / 32;

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

__device__ __forceinline__ int place(int chunk, int i) {
    return ((chunk * pieces + i) * threads + threadIdx.x % threads) * vec;
}

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
    write(to, result);
}

constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 2) return __expf(x);
    else return expf(x);
}

// The maximum of LANES neighbours and their sum of exponentials relative to it.
template <int OF> __device__ __forceinline__ void reduce(float& most, float& sum) {
    float all = most;
#pragma unroll
    for (int step = OF / 2; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
    sum *= exp_of(most - all);
#pragma unroll
    for (int step = OF / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    most = all;
}

// The same of a row, in each of its threads.
__device__ __forceinline__ void reduce_row(float& most, float& sum) {
    reduce<LANES>(most, sum);
    if constexpr (WARPS > 1) {
        __shared__ float mosts[groups][WARPS], sums[groups][WARPS];
        const int lane = threadIdx.x % 32, group = threadIdx.x / threads, warp = threadIdx.x % threads / 32;
        if (lane == 0) mosts[group][warp] = most, sums[group][warp] = sum;
        __syncthreads();
        most = lane < WARPS ? mosts[group][lane] : LOWEST;
        sum = lane < WARPS ? sums[group][lane] : 0.0f;
        reduce<32>(most, sum);
    }
}

extern "C" __global__ void __launch_bounds__(threads * groups)
causal_softmax_rows(const x_t* __restrict__ x, out_t* __restrict__ out, long long rows, int queries, float scale) {
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / threads;
    const bool inside = row < rows;
    Pack<x_t> held[pieces];
    const int seen = int(row % queries) + keys - queries + 1;
    float value[pieces][vec], most = LOWEST, sum = 0.0f;
    // Products rounded as the maximum is: fused with its subtraction, the greatest would not become zero.
    const auto read = [&](int chunk) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (inside && at < seen) held[i] = *reinterpret_cast<const Pack<x_t>*>(x + row * keys + at);
            else held[i] = Pack<x_t>{};
        }
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                value[i][e] = place(chunk, i) + e < seen ? __fmul_rn(float(held[i].at[e]), scale) : -INFINITY;
            }
        }
    };
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        read(chunk);
        float higher = most;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) higher = fmaxf(higher, value[i][e]);
        }
        sum *= exp_of(most - higher);
        most = higher;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float power = exp_of(value[i][e] - most);
                sum += power;
                if constexpr (chunks == 1) value[i][e] = power;
            }
        }
    }
    const float own = most;
    reduce_row(most, sum);
    const float part = chunks == 1 ? exp_of(own - most) / sum : 1.0f / sum;
#pragma unroll 1
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        if (chunk < chunks - 1) read(chunk);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (!inside || at >= keys) continue;
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float power = chunks == 1 ? value[i][e] : exp_of(value[i][e] - most);
                result[e] = at + e < seen ? power * part : 0.0f;
            }
            store(out + row * keys + at, result);
        }
    }
}
