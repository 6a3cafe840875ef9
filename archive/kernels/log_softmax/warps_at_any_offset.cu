/*---
op = "log_softmax"
note = "a warp per row, without a barrier, wherever the row begins: its whole 16-byte pieces are loaded at once and stay in registers as numbers, the few values before the first and behind the last piece are of one lane each; few instructions for each value"
when = "cols * itemsize(x) >= 128 and cols * itemsize(x) <= 4112"
specialize = ["cols", "pieces"]

[knobs]
WARPS = [4, 2, 8]

[let]
pieces = "ceil_div(cols * itemsize(x) // 16, 32)"

[[launch]]
entry = "log_softmax_warps"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "out", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
union Pack {
    uint4 raw;
    x_t at[VEC];
};

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 4) return expf(x);
    float result;  // without the steps that keep subnormal numbers
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
}

constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN

extern "C" __global__ void __launch_bounds__(32 * WARPS)
log_softmax_warps(const x_t* __restrict__ x, out_t* __restrict__ out, long long rows) {
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32, start = row * cols;
    if (row >= rows) return;  // the whole warp
    const int lane = threadIdx.x % 32;
    int head = 0, count = cols / VEC;
    long long extra = -1;  // the value in no whole piece that is this lane's
    if constexpr (cols % VEC != 0) {
        const int ahead = int(-start & (VEC - 1));
        head = ahead < cols ? ahead : cols;
        count = (cols - head) / VEC;
        const int tail = cols - head - count * VEC, at = lane % VEC;
        if (lane < VEC && at < head) extra = start + at;
        if (lane / VEC == 1 && at < tail) extra = start + cols - tail + at;
    }
    const uint4* const from = reinterpret_cast<const uint4*>(x + start + head) + lane;
    Pack held[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (i * 32 + lane < count) held[i].raw = from[i * 32];
    }
    const float single = extra >= 0 ? float(x[extra]) : -INFINITY;
    float value[pieces][VEC], most = fmaxf(single, LOWEST);
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const bool inside = i * 32 + lane < count;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            value[i][e] = inside ? float(held[i].at[e]) : -INFINITY;
            most = fmaxf(most, value[i][e]);  // NaN is left to the sum
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    float sum = exp_of(single - most);
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        float few = 0.0f;  // sums of sums are more exact
#pragma unroll
        for (int e = 0; e < VEC; ++e) few += exp_of(value[i][e] - most);
        sum += few;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float logarithm = logf(sum);
    if (extra >= 0) out[extra] = out_t(single - most - logarithm);
    uint4* const to = reinterpret_cast<uint4*>(out + start + head) + lane;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (i * 32 + lane >= count) continue;
        Pack result;
#pragma unroll
        for (int e = 0; e < VEC; e += 2) put(&result.at[e], value[i][e] - most - logarithm, value[i][e + 1] - most - logarithm);
        __stcs(to + i * 32, result.raw);
    }
}
