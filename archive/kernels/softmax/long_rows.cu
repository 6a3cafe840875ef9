/*---
op = "softmax"
note = "one block per long row, read once: part of the row stays in registers, part in shared memory, and only what fits in neither is read again, last first, from the L2 cache"
when = "cols * itemsize(x) % 16 == 0 and cols >= 2048"
specialize = ["cols", "kept", "parked", "again"]
require = ["THREADS * BLOCKS <= 1024", "THREADS * BLOCKS * (kept + CHUNK) <= 6144"]

[knobs]
THREADS = [1024, 512]
IN_REGISTERS = [2, 1, 4, 8]
IN_SHARED = [13, 1, 6, 10]
CHUNK = [4, 1, 2]
BLOCKS = [1, 2]

[let]
vectors = "ceil_div(cols, THREADS * (16 // itemsize(x)))"
kept = "min(IN_REGISTERS, vectors)"
parked = "min(IN_SHARED, vectors - kept)"
again = "vectors - kept - parked"

[[launch]]
entry = "softmax_row"
grid = ["rows"]
block = ["THREADS"]
shared = "parked * THREADS * 16"
args = ["x", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
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

__device__ __forceinline__ void reduce_warp(float& most, float& sum) {
    float all = most;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
    sum *= exp_of(most - all);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    most = all;
}

// This thread's vector number i of the row; beyond the row's end, values that count for nothing.
__device__ __forceinline__ Vec read(const x_t* row, int i) {
    const int at = i * THREADS + threadIdx.x;
    Vec v;
    if (at < cols / VEC) return reinterpret_cast<const Vec*>(row)[at];
#pragma unroll
    for (int e = 0; e < VEC; ++e) v.at[e] = x_t(-INFINITY);
    return v;
}

// Takes one vector into the running maximum and the sum of exponentials relative to it.
__device__ __forceinline__ void take(const Vec& v, float& most, float& sum) {
    float higher = most;
#pragma unroll
    for (int e = 0; e < VEC; ++e) higher = fmaxf(higher, float(v.at[e]));
    sum *= exp_of(most - higher);
#pragma unroll
    for (int e = 0; e < VEC; ++e) sum += exp_of(float(v.at[e]) - higher);
    most = higher;
}

__device__ __forceinline__ void write(out_t* row, int i, const Vec& v, float most, float scale) {
    const int at = i * THREADS + threadIdx.x;
    Vec y;
#pragma unroll
    for (int e = 0; e < VEC; e += 2) {
        put(&y.at[e], exp_of(float(v.at[e]) - most) * scale, exp_of(float(v.at[e + 1]) - most) * scale);
    }
    if (at < cols / VEC) reinterpret_cast<Vec*>(row)[at] = y;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
softmax_row(const x_t* __restrict__ x, out_t* __restrict__ out) {
    extern __shared__ Vec park[];
    __shared__ float mosts[32], sums[32];
    const x_t* row = x + (long long)blockIdx.x * cols;
    out_t* to = out + (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most = LOWEST, sum = 0.0f;
    Vec keep[kept];
#pragma unroll
    for (int i = 0; i < kept; ++i) keep[i] = read(row, i);
#pragma unroll 1
    for (int i = 0; i < parked + again; i += CHUNK) {
        Vec v[CHUNK];
#pragma unroll
        for (int c = 0; c < CHUNK; ++c) v[c] = read(row, kept + i + c);
#pragma unroll
        for (int c = 0; c < CHUNK; ++c) {
            if (i + c < parked) park[(i + c) * THREADS + threadIdx.x] = v[c];
            take(v[c], most, sum);
        }
    }
#pragma unroll
    for (int i = 0; i < kept; ++i) take(keep[i], most, sum);

    reduce_warp(most, sum);
    if (lane == 0) mosts[warp] = most, sums[warp] = sum;
    __syncthreads();
    most = lane < THREADS / 32 ? mosts[lane] : LOWEST;
    sum = lane < THREADS / 32 ? sums[lane] : 0.0f;
    reduce_warp(most, sum);
    const float scale = 1.0f / sum;

#pragma unroll 2
    for (int i = again - 1; i >= 0; --i) write(to, kept + parked + i, read(row, kept + parked + i), most, scale);
#pragma unroll 2
    for (int i = 0; i < parked; ++i) {
        const Vec v = park[i * THREADS + threadIdx.x];
        write(to, kept + i, v, most, scale);
    }
#pragma unroll
    for (int i = 0; i < kept; ++i) write(to, i, keep[i], most, scale);
}
