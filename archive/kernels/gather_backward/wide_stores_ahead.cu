/*---
op = "gather_backward"
note = "many indices a row: a warp per row, whose sums are in shared memory; several times 32 indices and gradients are on their way while 32 are added up, those for the same place one after the other, in order; then the row is written by the widest stores; no atomics; results are stored in accesses as wide as the loads"
when = "cols <= 8192 and k >= 32"
specialize = ["cols", "vec", "width"]
require = ["WARPS * width * 4 <= 196608"]

[knobs]
WARPS = [4, 1, 2]
AHEAD = [8, 4, 16]

[let]
full = "16 // itemsize(grad_out)"
vec = "min(full, 1 + (1 - min(1, cols % 2)) + 2 * (1 - min(1, cols % 4)) + 4 * (1 - min(1, cols % 8)))"
width = "ceil_div(cols, 4) * 4"

[[launch]]
entry = "add_to_rows"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
shared = "WARPS * width * 4"
args = ["grad_out", "indices", "grad_x", "rows", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern __shared__ float memory[];

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

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

template <class T> __device__ __forceinline__ void store(T* to, const float (&from)[vec]) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e + 1 < vec; e += 2) put(&result.at[e], from[e], from[e + 1]);
    if constexpr (vec == 1) result.at[0] = T(from[0]);
    write(to, result);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
add_to_rows(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices, grad_x_t* __restrict__ grad_x,
            int rows, int k) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = (long long)blockIdx.x * WARPS + warp;
    if (row >= rows) return;  // the whole warp
    float* const sums = memory + warp * width;
    for (int at = lane * 4; at < width; at += 128) *reinterpret_cast<float4*>(sums + at) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncwarp();
    int next[AHEAD];
    float next_grad[AHEAD];
    const auto read = [&](int a, int at) {
        next[a] = at < k ? int(indices[row * k + at]) : -1;
        next_grad[a] = at < k ? float(grad_out[row * k + at]) : 0.0f;
    };
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) read(a, a * 32 + lane);
#pragma unroll 1
    for (int begin = 0; begin < k; begin += 32 * AHEAD) {
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            if (begin + a * 32 >= k) break;
            const int place = next[a];
            const float grad = next_grad[a];
            read(a, begin + (a + AHEAD) * 32 + lane);
            const unsigned same = __match_any_sync(0xffffffffu, place);
            const int rank = __popc(same & ((1u << lane) - 1)), last = place < 0 ? 0 : __popc(same) - 1;
            const int turns = __reduce_max_sync(0xffffffffu, last);
            for (int turn = 0; turn <= turns; ++turn) {
                if (place >= 0 && rank == turn) sums[place] += grad;
                __syncwarp();
            }
        }
    }
    for (int at = lane * vec; at < cols; at += 32 * vec) {
        float result[vec];
#pragma unroll
        for (int e = 0; e < vec; ++e) result[e] = sums[at + e];
        store(grad_x + row * cols + at, result);
    }
}
