/*---
op = "masked_softmax_backward"
note = "a group of threads per row, from 8 to 1024; the widest loads the row allows, both rows stay in registers; longer rows are read again in pieces, the last first; results are stored in accesses as wide as the loads"
specialize = ["keys", "vec", "threads", "groups", "pieces", "chunks"]
require = ["threads * groups <= 1024", "2 * pieces * max(1, vec * itemsize(out) // 4) * threads * groups <= 32768"]

[knobs]
ROW_LOADS = [2, 1, 4, 8]
HELD = [2, 4, 8]
BLOCK = [128, 256, 512]

[let]
full = "16 // itemsize(out)"
vec = "min(full, 1 + (1 - min(1, keys % 2)) + 2 * (1 - min(1, keys % 4)) + 4 * (1 - min(1, keys % 8)))"
loads = "min(16, ROW_LOADS * full // vec)"
need = "ceil_div(keys, vec * loads)"
lanes = "8 + 8 * min(1, (need - 1) // 8) + 16 * min(1, (need - 1) // 16)"
threads = "min(1024, lanes * ceil_div(need, 32))"
groups = "max(1, BLOCK // threads)"
all = "ceil_div(keys, threads * vec)"
pieces = "min(all, max(loads, min(16, HELD * full // vec)))"
chunks = "ceil_div(all, pieces)"
rows = "batch * heads * queries"

[[launch]]
entry = "masked_softmax_backward_rows"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
args = ["grad_out", "out", "mask", "grad_x", "rows", "heads", "queries", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int LANES = threads < 32 ? threads : 32, WARPS = (threads + 31) / 32;

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

__device__ __forceinline__ int place(int chunk, int i) {
    return ((chunk * pieces + i) * threads + threadIdx.x % threads) * vec;
}

// What lies beyond the row is zero.
template <class T>
__device__ __forceinline__ void fetch(Pack<T> (&to)[pieces], const T* __restrict__ row, int chunk, bool inside) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int at = place(chunk, i);
        if (inside && at < keys) to[i] = *reinterpret_cast<const Pack<T>*>(row + at);
        else to[i] = Pack<T>{};
    }
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

// The sum over the threads of a row, in each of them; each USE has its own shared memory.
template <int USE, class T> __device__ __forceinline__ T sum_of_row(T sum) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if constexpr (WARPS > 1) {
        __shared__ T sums[groups][WARPS];
        const int lane = threadIdx.x % 32, group = threadIdx.x / threads;
        if (lane == 0) sums[group][threadIdx.x % threads / 32] = sum;
        __syncthreads();
        sum = lane < WARPS ? sums[group][lane] : T(0);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    return sum;
}

// Exact: 16-bit factors have products of at most 22 bits.
__device__ __forceinline__ double product(float a, float b) {
    if constexpr (sizeof(out_t) == 2) return double(a * b);
    else return double(a) * double(b);
}

extern "C" __global__ void __launch_bounds__(threads * groups)
masked_softmax_backward_rows(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out,
                             const mask_t* __restrict__ mask, grad_x_t* __restrict__ grad_x, long long rows, int heads,
                             int queries, float scale) {
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / threads;
    const bool inside = row < rows;
    const mask_t* hidden = mask + (row / queries / heads * queries + row % queries) * keys;
    Pack<grad_out_t> grad[pieces];
    Pack<out_t> held[pieces];
    const auto read = [&](int chunk) {
        fetch(grad, grad_out + row * keys, chunk, inside);
        fetch(held, out + row * keys, chunk, inside);
    };
    double sum = 0.0;  // where the gradient is about as large, little but its rounding would be left
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        read(chunk);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) sum += product(float(grad[i].at[e]), float(held[i].at[e]));
        }
    }
    sum = sum_of_row<0>(sum);
#pragma unroll 1
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        if (chunk < chunks - 1) read(chunk);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (!inside || at >= keys) continue;
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float value = scale * float(held[i].at[e]) * float(float(grad[i].at[e]) - sum);
                result[e] = hidden[at + e] ? 0.0f : value;  // of a row that is hidden altogether, out is NaN
            }
            store(grad_x + row * keys + at, result);
        }
    }
}
