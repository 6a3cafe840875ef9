/*---
op = "causal_softmax_backward"
note = "a warp per row, without a barrier: all 16-byte loads of what the query sees are in flight at once, and zeros are written for the rest meanwhile; the sum is kept in two floats, because conversions to float64 are slow; results are stored in accesses as wide as the loads"
when = "keys * itemsize(out) % 16 == 0 and keys * itemsize(out) <= 4096"
specialize = ["keys", "pieces"]

[knobs]
WARPS = [4, 2, 8]

[let]
pieces = "ceil_div(keys * itemsize(out), 512)"
rows = "batch * heads * queries"

[[launch]]
entry = "causal_softmax_backward_rows"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["grad_out", "out", "grad_x", "rows", "queries", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(out_t);
struct alignas(16) Pack { out_t at[VEC]; };

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

__device__ __forceinline__ void store(out_t* to, const float (&from)[VEC]) {
    Pack result;
#pragma unroll
    for (int e = 0; e < VEC; e += 2) put(&result.at[e], from[e], from[e + 1]);
    write(to, result);
}

// Adds a product and keeps what is rounded away, so that little but rounding is not left where the gradient is about as large.
__device__ __forceinline__ void add(float& sum, float& rest, float a, float b) {
    const float product = __fmul_rn(a, b), next = __fadd_rn(sum, product), added = __fsub_rn(next, sum);
    rest += __fsub_rn(sum, __fsub_rn(next, added)) + __fsub_rn(product, added);
    if constexpr (sizeof(out_t) == 4) rest += fmaf(a, b, -product);  // in 16 bits products are exact
    sum = next;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
causal_softmax_backward_rows(const out_t* __restrict__ grad_out, const out_t* __restrict__ out, out_t* __restrict__ grad_x,
                             long long rows, int queries, float scale) {
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp
    const int own = threadIdx.x % 32 * VEC, seen = int(row % queries) + keys - queries + 1;
    const long long first = row * keys + own;
    const float zeros[VEC] = {};
    Pack grad[pieces], held[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int at = i * 32 * VEC;
        grad[i] = held[i] = Pack{};
        if (own + at < seen) {
            grad[i] = *reinterpret_cast<const Pack*>(grad_out + first + at);
            held[i] = *reinterpret_cast<const Pack*>(out + first + at);
        } else if (own + at < keys) {
            store(grad_x + first + at, zeros);
        }
    }
    float sum = 0.0f, rest = 0.0f;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (i * 32 * VEC >= seen) break;  // all lanes
        if ((i + 1) * 32 * VEC > seen) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                if (own + i * 32 * VEC + e >= seen) grad[i].at[e] = held[i].at[e] = out_t(0.0f);
            }
        }
#pragma unroll
        for (int e = 0; e < VEC; ++e) add(sum, rest, float(grad[i].at[e]), float(held[i].at[e]));
    }
    double all = fabsf(sum) < INFINITY ? double(sum) + double(rest) : double(sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
    sum = float(all);
    rest = fabsf(sum) < INFINITY ? float(all - double(sum)) : 0.0f;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int at = i * 32 * VEC;
        if (own + at >= seen) break;
        float result[VEC];
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const float away = __fsub_rn(float(grad[i].at[e]), sum) - rest;
            result[e] = scale * float(held[i].at[e]) * away;
        }
        if (at + 32 * VEC > seen) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) result[e] = own + at + e < seen ? result[e] : 0.0f;
        }
        store(grad_x + first + at, result);
    }
}
