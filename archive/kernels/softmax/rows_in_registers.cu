/*---
op = "softmax"
note = "a group of threads per row, a warp for short rows and a block for long ones; 16-byte loads, the row stays in registers, one exponential per value, one barrier"
when = "cols * itemsize(x) % 16 == 0 and cols <= 16384"
specialize = ["cols", "threads", "groups", "vectors", "together"]
require = ["vectors * vec * together * threads * groups < 32768", "vectors * vec * together <= 64", "threads * groups <= 1024"]

[knobs]
ROW_LOADS = [2, 1, 4, 8]
BLOCK = [128, 256, 512]
LOADS = [2, 1, 4, 8]

[let]
vec = "16 // itemsize(x)"
threads = "min(1024, 32 * ceil_div(cols, 32 * vec * ROW_LOADS))"
groups = "max(1, BLOCK // threads)"
vectors = "ceil_div(cols, threads * vec)"
together = "max(1, LOADS // vectors)"

[[launch]]
entry = "softmax_rows"
grid = ["ceil_div(rows, groups * together)"]
block = ["threads * groups"]
args = ["x", "out", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32;
constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN
struct alignas(16) Vec { x_t at[VEC]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 2) return __expf(x);
    else return expf(x);
}

__device__ __forceinline__ float inverse(float x) {
    if constexpr (sizeof(x_t) == 2) return __fdividef(1.0f, x);
    else return 1.0f / x;
}

// The maximum of a warp, and its sum of exponentials relative to that maximum, in every lane.
__device__ __forceinline__ void reduce_warp(float& most, float& sum) {
    float all = most;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
    sum *= exp_of(most - all);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    most = all;
}

extern "C" __global__ void __launch_bounds__(threads * groups, 1)
softmax_rows(const x_t* __restrict__ x, out_t* __restrict__ out, int rows) {
    const int thread = threadIdx.x % threads, group = threadIdx.x / threads;
    const int first = (blockIdx.x * groups + group) * together;
    float value[together][vectors][VEC], own[together], most[together], sum[together];
#pragma unroll
    for (int r = 0; r < together; ++r) {
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
            const int at = i * threads + thread;
            const bool inside = first + r < rows && at < cols / VEC;
            Vec v{};
            if (inside) v = reinterpret_cast<const Vec*>(x + (long long)(first + r) * cols)[at];
#pragma unroll
            for (int e = 0; e < VEC; ++e) value[r][i][e] = inside ? float(v.at[e]) : -INFINITY;
        }
    }
#pragma unroll
    for (int r = 0; r < together; ++r) {
        own[r] = LOWEST, sum[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) own[r] = fmaxf(own[r], value[r][i][e]);
        }
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) sum[r] += value[r][i][e] = exp_of(value[r][i][e] - own[r]);
        }
        most[r] = own[r];
        reduce_warp(most[r], sum[r]);
    }
    if constexpr (WARPS > 1) {
        __shared__ float mosts[groups][together][WARPS], sums[groups][together][WARPS];
        const int lane = threadIdx.x % 32, warp = thread / 32;
#pragma unroll
        for (int r = 0; r < together; ++r) {
            if (lane == 0) mosts[group][r][warp] = most[r], sums[group][r][warp] = sum[r];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < together; ++r) {
            most[r] = lane < WARPS ? mosts[group][r][lane] : LOWEST;
            sum[r] = lane < WARPS ? sums[group][r][lane] : 0.0f;
            reduce_warp(most[r], sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < together; ++r) {
        const float scale = exp_of(own[r] - most[r]) * inverse(sum[r]);
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
            const int at = i * threads + thread;
            Vec y;
#pragma unroll
            for (int e = 0; e < VEC; e += 2) put(&y.at[e], value[r][i][e] * scale, value[r][i][e + 1] * scale);
            if (first + r < rows && at < cols / VEC) {
                reinterpret_cast<Vec*>(out + (long long)(first + r) * cols)[at] = y;
            }
        }
    }
}
