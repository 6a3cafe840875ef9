/*---
op = "masked_softmax"
note = "the warps of a query keep its mask in registers as upper bounds, infinite of either sign, for one head after the other: hiding a key costs one minimum, which also turns NaN into an infinity that makes the row NaN; the next head's row is on its way meanwhile; few instructions for each value"
when = "keys % 4 == 0 and keys <= 8192"
specialize = ["keys", "heads", "queries", "vec", "warps", "groups", "pieces", "share", "splits"]
require = ["32 * warps * groups <= 1024"]

[knobs]
HEADS = [8, 4, 16]
BLOCK = [128, 64, 256]

[let]
full = "16 // itemsize(x)"
vec = "min(full, 4 + 4 * (1 - min(1, keys % 8)))"
warps = "ceil_div(keys, 512)"
groups = "max(1, BLOCK // (32 * warps))"
pieces = "ceil_div(keys, 32 * warps * vec)"
splits = "ceil_div(heads, HEADS)"
share = "ceil_div(heads, splits)"
items = "batch * queries * splits"

[[launch]]
entry = "masked_softmax_heads"
grid = ["ceil_div(items, groups)"]
block = ["32 * warps * groups"]
args = ["x", "mask", "out", "items", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 32 * warps;

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec) Pack { T at[vec]; };

__device__ __forceinline__ int place(int i) { return (i * THREADS + threadIdx.x % THREADS) * vec; }

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

// In one access: the compiler may split a struct.
__device__ __forceinline__ void store(out_t* to, const Pack<out_t>& from) {
    if constexpr (sizeof(from) == 16) __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
}

constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 4) return expf(x);
    float result;  // without the steps that keep subnormal numbers
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
}

__device__ __forceinline__ float greatest_of_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}
__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

// What a warp's exponentials, relative to its own maximum, are multiplied by; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ float factor_of(float most, float sum, int turn) {
    if constexpr (warps == 1) return 1.0f / sum;
    __shared__ float2 all[2][groups][warps];
    const int lane = threadIdx.x % 32, group = threadIdx.x / THREADS;
    if (lane == 0) all[turn][group][threadIdx.x % THREADS / 32] = make_float2(most, sum);
    __syncthreads();
    const float2 one = lane < warps ? all[turn][group][lane] : make_float2(LOWEST, 0.0f);
    const float of_row = greatest_of_warp(one.x);
    return exp_of(most - of_row) / sum_of_warp(one.y * exp_of(one.x - of_row));
}

extern "C" __global__ void __launch_bounds__(THREADS * groups)
masked_softmax_heads(const x_t* __restrict__ x, const mask_t* __restrict__ mask, out_t* __restrict__ out, long long items, float scale) {
    const long long item = (long long)blockIdx.x * groups + threadIdx.x / THREADS;
    const long long query = item / splits;  // of all images
    const int first = int(item % splits) * share, count = item < items ? min(share, heads - first) : 0;
    const long long begin = ((query / queries * heads + first) * queries + query % queries) * keys;
    Pack<x_t> next[pieces];
    const auto request = [&](int head) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            if (head < count && place(i) < keys) {
                next[i] = *reinterpret_cast<const Pack<x_t>*>(x + begin + head * (long long)queries * keys + place(i));
            }
        }
    };
#pragma unroll
    for (int i = 0; i < pieces; ++i) next[i] = Pack<x_t>{};
    request(0);
    float bound[pieces][vec];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const bool inside = count > 0 && place(i) < keys;
        Pack<mask_t> hidden{};
        if (inside) hidden = *reinterpret_cast<const Pack<mask_t>*>(mask + query * keys + place(i));
#pragma unroll
        for (int e = 0; e < vec; ++e) bound[i][e] = inside && !hidden.at[e] ? INFINITY : -INFINITY;
    }
#pragma unroll 1
    for (int head = 0; head < share; ++head) {
        float value[pieces][vec], most = LOWEST, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                // A product rounded as the maximum is: fused with its subtraction, the greatest would not become zero.
                value[i][e] = fminf(__fmul_rn(float(next[i].at[e]), scale), bound[i][e]);
                most = fmaxf(most, value[i][e]);
            }
        }
        request(head + 1);
        most = greatest_of_warp(most);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) sum += value[i][e] = exp_of(value[i][e] - most);
        }
        sum = sum_of_warp(sum);
        const float factor = factor_of(most, sum, head % 2);
        if (head >= count) continue;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            if (place(i) >= keys) continue;
            Pack<out_t> result;
#pragma unroll
            for (int e = 0; e < vec; e += 2) put(&result.at[e], value[i][e] * factor, value[i][e + 1] * factor);
            store(out + begin + head * (long long)queries * keys + place(i), result);
        }
    }
}
