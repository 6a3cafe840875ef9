/*---
op = "gather_backward"
note = "a warp per row, or per several short rows side by side, whose sums are in shared memory; indices and gradients of several times 32 are read as they are, before anything waits for them, and converted only when used; which of 32 fall together is found for all of these before the first is added; results are read without bank conflicts and written by stores of 16 bytes; no atomics, one order"
when = "cols <= 8192"
specialize = ["cols", "k", "vec", "width", "together", "ahead"]
require = ["WARPS * width * 4 <= 196608"]

[knobs]
WARPS = [4, 1, 2]
AHEAD = [8, 2, 4]
ITEMS = [64, 128, 320]

[let]
full = "16 // itemsize(grad_out)"
together = "max(1, min(ITEMS // k, 4096 // cols))"
line = "together * cols"
ahead = "min(AHEAD, ceil_div(together * k, 32))"
vec = "min(full, 1 + (1 - min(1, line % 2)) + 2 * (1 - min(1, line % 4)) + 4 * (1 - min(1, line % 8)))"
width = "ceil_div(line, 256) * 256"

[[launch]]
entry = "add_to_rows"
grid = ["ceil_div(rows, WARPS * together)"]
block = ["32 * WARPS"]
shared = "WARPS * width * 4"
args = ["grad_out", "indices", "grad_x", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr unsigned ALL = 0xffffffffu;
extern __shared__ float4 memory[];

struct alignas(sizeof(grad_x_t) * vec) Pack { grad_x_t at[vec]; };

__device__ __forceinline__ unsigned pair(const __nv_bfloat16*, float a, float b) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&both);
}
__device__ __forceinline__ unsigned pair(const __half*, float a, float b) {
    const __half2 both = __floats2half2_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&both);
}
__device__ __forceinline__ unsigned pair(const float*, float a, float) { return __float_as_uint(a); }

// Some 32 terms are added: those for the same place one after the other.
__device__ __forceinline__ void add(float* sums, int place, float grad, int rank) {
    for (int turn = 0;; ++turn) {
        if (place >= 0 && rank == turn) sums[place] += grad;
        __syncwarp();
        if (!__any_sync(ALL, place >= 0 && rank > turn)) break;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
add_to_rows(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
            grad_x_t* __restrict__ grad_x, int rows) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long first = ((long long)blockIdx.x * WARPS + warp) * together;
    if (first >= rows) return;  // the whole warp
    const int own_rows = int(min((long long)together, rows - first)), count = own_rows * k, length = own_rows * cols;
    const long long* const from = indices + first * k;
    const grad_out_t* const from_grads = grad_out + first * k;
    int found[ahead];
    grad_out_t grads[ahead];  // as they are: a conversion here would wait for the load
    const auto read = [&](int begin) {
#pragma unroll
        for (int a = 0; a < ahead; ++a) {
            const int at = begin + a * 32 + lane;
            found[a] = -1, grads[a] = grad_out_t(0.0f);
            if (at < count) found[a] = int(from[at]), grads[a] = from_grads[at];
        }
    };
    read(0);
    float* const sums = reinterpret_cast<float*>(memory) + warp * width;
#pragma unroll 4
    for (int at = lane; at < width / 4; at += 32) {
        reinterpret_cast<float4*>(sums)[at] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __syncwarp();
#pragma unroll 1
    for (int begin = 0; begin < count; begin += 32 * ahead) {
        int place[ahead], rank[ahead];
        float grad[ahead];
#pragma unroll
        for (int a = 0; a < ahead; ++a) {
            const int at = begin + a * 32 + lane;
            place[a] = found[a] < 0 ? -1 : found[a] + (together > 1 ? at / k * cols : 0);
            grad[a] = float(grads[a]);
        }
        read(begin + 32 * ahead);
#pragma unroll
        for (int a = 0; a < ahead; ++a) rank[a] = __popc(__match_any_sync(ALL, place[a]) & ((1u << lane) - 1));
#pragma unroll
        for (int a = 0; a < ahead; ++a) add(sums, place[a], grad[a], rank[a]);
    }
    grad_x_t* const to = grad_x + first * cols;
    if constexpr (sizeof(Pack) == 16 && vec == 8) {
        const int turned = lane / 4 % 2;  // half of the lanes begin with their second half, in the other banks
#pragma unroll 4
        for (int at = lane; at < length / vec; at += 32) {
            const float4 one = reinterpret_cast<const float4*>(sums)[2 * at + turned];
            const float4 other = reinterpret_cast<const float4*>(sums)[2 * at + 1 - turned];
            const unsigned a = pair(to, one.x, one.y), b = pair(to, one.z, one.w);
            const unsigned c = pair(to, other.x, other.y), d = pair(to, other.z, other.w);
            __stcs(reinterpret_cast<uint4*>(to) + at, turned ? make_uint4(c, d, a, b) : make_uint4(a, b, c, d));
        }
    } else if constexpr (sizeof(Pack) == 16) {
#pragma unroll 4
        for (int at = lane; at < length / vec; at += 32) {
            const float4 four = reinterpret_cast<const float4*>(sums)[at];
            __stcs(reinterpret_cast<float4*>(to) + at, four);
        }
    } else {
#pragma unroll 4
        for (int at = lane; at < length / vec; at += 32) {
            Pack result;
#pragma unroll
            for (int e = 0; e < vec; ++e) result.at[e] = grad_x_t(sums[at * vec + e]);
            reinterpret_cast<Pack*>(to)[at] = result;
        }
    }
    // Of the last rows, fewer than usual, something may be left over.
    for (int at = length / vec * vec + lane; at < length; at += 32) to[at] = grad_x_t(sums[at]);
}
