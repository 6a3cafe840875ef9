/*---
op = "causal_softmax_backward"
note = "a warp per row, without a barrier, wherever the row begins: of its whole 16-byte pieces those that the query sees are loaded at once, zeros are written for the others meanwhile, and the few values before the first and behind the last piece are of one lane each; the sum is kept in two floats, because conversions to float64 are slow"
when = "keys * itemsize(out) >= 128 and keys * itemsize(out) <= 4112"
specialize = ["keys", "pieces"]

[knobs]
WARPS = [4, 2, 8]

[let]
pieces = "ceil_div(keys * itemsize(out) // 16, 32)"
rows = "batch * heads * queries"

[[launch]]
entry = "causal_softmax_backward_warps"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["grad_out", "out", "grad_x", "rows", "queries", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(out_t);
union Pack {
    uint4 raw;
    out_t at[VEC];
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

// Adds a product and keeps what is rounded away, so that little but rounding is not left where the gradient is about as large.
__device__ __forceinline__ void add(float& sum, float& rest, float a, float b) {
    const float product = __fmul_rn(a, b), next = __fadd_rn(sum, product), added = __fsub_rn(next, sum);
    rest += __fsub_rn(sum, __fsub_rn(next, added)) + __fsub_rn(product, added);
    if constexpr (sizeof(out_t) == 4) rest += fmaf(a, b, -product);  // in 16 bits products are exact
    sum = next;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
causal_softmax_backward_warps(const out_t* __restrict__ grad_out, const out_t* __restrict__ out, out_t* __restrict__ grad_x,
                              long long rows, int queries, float scale) {
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32, start = row * keys;
    if (row >= rows) return;  // the whole warp
    const int lane = threadIdx.x % 32, seen = int(row % queries) + keys - queries + 1;
    const Row place(start);
    const int own = place.head + lane * VEC;  // the column of the lane's first piece
    const uint4* const grads = reinterpret_cast<const uint4*>(grad_out + start + place.head) + lane;
    const uint4* const values = reinterpret_cast<const uint4*>(out + start + place.head) + lane;
    uint4* const to = reinterpret_cast<uint4*>(grad_x + start + place.head) + lane;
    Pack grad[pieces], held[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const bool inside = i * 32 + lane < place.count, visible = inside && own + i * 32 * VEC < seen;
        grad[i].raw = held[i].raw = make_uint4(0, 0, 0, 0);
        if (visible) grad[i].raw = grads[i * 32], held[i].raw = values[i * 32];
        else if (inside) __stcs(to + i * 32, make_uint4(0, 0, 0, 0));
    }
    const bool single_seen = place.single >= 0 && place.single < seen;
    const float single_grad = single_seen ? float(grad_out[start + place.single]) : 0.0f;
    const float single = single_seen ? float(out[start + place.single]) : 0.0f;
    float sum = 0.0f, rest = 0.0f;
    add(sum, rest, single_grad, single);
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (place.head + i * 32 * VEC >= seen) break;  // all lanes
        const int left = seen - own - i * 32 * VEC;  // values that are seen, if it is positive
        if (left > 0 && left < VEC) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                if (e >= left) grad[i].at[e] = held[i].at[e] = out_t(0.0f);
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
    const auto result_of = [&](float one, float value) { return scale * value * (__fsub_rn(one, sum) - rest); };
    if (place.single >= 0) grad_x[start + place.single] = out_t(single_seen ? result_of(single_grad, single) : 0.0f);
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int left = i * 32 + lane < place.count ? seen - own - i * 32 * VEC : 0;
        if (left <= 0) break;
        Pack result;
#pragma unroll
        for (int e = 0; e < VEC; e += 2) {
            const float first = result_of(float(grad[i].at[e]), float(held[i].at[e]));
            const float second = result_of(float(grad[i].at[e + 1]), float(held[i].at[e + 1]));
            put(&result.at[e], e < left ? first : 0.0f, e + 1 < left ? second : 0.0f);
        }
        __stcs(to + i * 32, result.raw);
    }
}
