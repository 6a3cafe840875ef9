/*---
op = "causal_softmax"
note = "a warp per row, without a barrier: all 16-byte loads of what the query sees are in flight at once, zeros are written for the rest meanwhile, and pieces that no lane sees cost nothing more; results are stored in accesses as wide as the loads"
when = "keys * itemsize(x) % 16 == 0 and keys * itemsize(x) <= 4096"
specialize = ["keys", "pieces"]

[knobs]
WARPS = [4, 2, 8]

[let]
pieces = "ceil_div(keys * itemsize(x), 512)"
rows = "batch * heads * queries"

[[launch]]
entry = "causal_softmax_rows"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "out", "rows", "queries", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Pack { x_t at[VEC]; };

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ void store(x_t* to, const float (&from)[VEC]) {
    Pack result;
#pragma unroll
    for (int e = 0; e < VEC; e += 2) put(&result.at[e], from[e], from[e + 1]);
    write(to, result);
}

constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 2) return __expf(x);
    else return expf(x);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
causal_softmax_rows(const x_t* __restrict__ x, out_t* __restrict__ out, long long rows, int queries, float scale) {
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp
    const int own = threadIdx.x % 32 * VEC, seen = int(row % queries) + keys - queries + 1;
    const x_t* const from = x + row * keys + own;
    out_t* const to = out + row * keys + own;
    const float zeros[VEC] = {};
    Pack held[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int at = i * 32 * VEC;
        held[i] = Pack{};
        if (own + at < seen) held[i] = *reinterpret_cast<const Pack*>(from + at);
        else if (own + at < keys) store(to + at, zeros);
    }
    float value[pieces][VEC], most = LOWEST, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (i * 32 * VEC >= seen) break;  // all lanes
        // Products rounded as the maximum is: fused with its subtraction, the greatest would not become zero.
#pragma unroll
        for (int e = 0; e < VEC; ++e) value[i][e] = __fmul_rn(float(held[i].at[e]), scale);
        if ((i + 1) * 32 * VEC > seen) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) value[i][e] = own + i * 32 * VEC + e < seen ? value[i][e] : -INFINITY;
        }
#pragma unroll
        for (int e = 0; e < VEC; ++e) most = fmaxf(most, value[i][e]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (i * 32 * VEC >= seen) break;
#pragma unroll
        for (int e = 0; e < VEC; ++e) sum += value[i][e] = exp_of(value[i][e] - most);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float part = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int at = i * 32 * VEC;
        if (own + at >= seen) break;
        float result[VEC];
#pragma unroll
        for (int e = 0; e < VEC; ++e) result[e] = value[i][e] * part;
        if (at + 32 * VEC > seen) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) result[e] = own + at + e < seen ? result[e] : 0.0f;
        }
        store(to + at, result);
    }
}
