/*---
op = "causal_softmax"
note = "a warp per row, without a barrier, wherever the row begins: of its whole 16-byte pieces those that the query sees are loaded at once, zeros are written for the others meanwhile, and the few values before the first and behind the last piece are of one lane each"
when = "keys * itemsize(x) >= 128 and keys * itemsize(x) <= 4112"
specialize = ["keys", "pieces"]

[knobs]
WARPS = [4, 2, 8]

[let]
pieces = "ceil_div(keys * itemsize(x) // 16, 32)"
rows = "batch * heads * queries"

[[launch]]
entry = "causal_softmax_warps"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "out", "rows", "queries", "scale"]
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

// A row's whole pieces, and the column in none that is this lane's.
struct Row {
    int head = 0, count = keys / VEC, single = -1;

    __device__ __forceinline__ explicit Row(long long start) {
        if constexpr (keys % VEC != 0) {
            const int lane = threadIdx.x % 32, ahead = int(-start & (VEC - 1));
            head = ahead < keys ? ahead : keys;
            count = (keys - head) / VEC;
            const int tail = keys - head - count * VEC, at = lane % VEC;
            if (lane < VEC && at < head) single = at;
            if (lane / VEC == 1 && at < tail) single = keys - tail + at;
        }
    }
};

constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 4) return expf(x);
    float result;  // without the steps that keep subnormal numbers
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
causal_softmax_warps(const x_t* __restrict__ x, out_t* __restrict__ out, long long rows, int queries, float scale) {
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32, start = row * keys;
    if (row >= rows) return;  // the whole warp
    const int lane = threadIdx.x % 32, seen = int(row % queries) + keys - queries + 1;
    const Row place(start);
    const int own = place.head + lane * VEC;  // the column of the lane's first piece
    const uint4* const from = reinterpret_cast<const uint4*>(x + start + place.head) + lane;
    uint4* const to = reinterpret_cast<uint4*>(out + start + place.head) + lane;
    Pack held[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const bool inside = i * 32 + lane < place.count, visible = inside && own + i * 32 * VEC < seen;
        held[i].raw = make_uint4(0, 0, 0, 0);
        if (visible) held[i].raw = from[i * 32];
        else if (inside) __stcs(to + i * 32, make_uint4(0, 0, 0, 0));
    }
    const bool single_seen = place.single >= 0 && place.single < seen;
    // Products rounded as the maximum is: fused with its subtraction, the greatest would not become zero.
    const float single = single_seen ? __fmul_rn(float(x[start + place.single]), scale) : -INFINITY;
    float value[pieces][VEC], most = fmaxf(single, LOWEST);
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (place.head + i * 32 * VEC >= seen) break;  // all lanes
        const int left = i * 32 + lane < place.count ? seen - own - i * 32 * VEC : 0;  // values that are seen
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            value[i][e] = e < left ? __fmul_rn(float(held[i].at[e]), scale) : -INFINITY;
            most = fmaxf(most, value[i][e]);  // NaN is left to the sum
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    const float power = exp_of(single - most);
    float sum = power;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (place.head + i * 32 * VEC >= seen) break;  // all lanes
#pragma unroll
        for (int e = 0; e < VEC; ++e) sum += value[i][e] = exp_of(value[i][e] - most);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float part = 1.0f / sum;
    if (place.single >= 0) out[start + place.single] = out_t(single_seen ? power * part : 0.0f);
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int left = i * 32 + lane < place.count ? seen - own - i * 32 * VEC : 0;
        if (left <= 0) break;
        Pack result;
#pragma unroll
        for (int e = 0; e < VEC; e += 2) {
            put(&result.at[e], e < left ? value[i][e] * part : 0.0f, e + 1 < left ? value[i][e + 1] * part : 0.0f);
        }
        __stcs(to + i * 32, result.raw);
    }
}
