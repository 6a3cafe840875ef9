/*---
op = "cross_entropy_backward"
note = "a group of threads per row, from 8 to 1024; the widest accesses the row allows, several loads in flight before the first is used; a launch before counts the rows that are kept"
specialize = ["vocab", "vec", "threads", "groups", "pieces", "chunks"]
require = ["threads * groups <= 1024", "pieces * max(1, vec * itemsize(logits) // 4) * threads * groups <= 32768"]

[knobs]
ROW_LOADS = [2, 1, 4, 8]
HELD = [4, 2, 8]
BLOCK = [128, 256, 512]

[let]
full = "16 // itemsize(logits)"
vec = "min(full, 1 + (1 - min(1, vocab % 2)) + 2 * (1 - min(1, vocab % 4)) + 4 * (1 - min(1, vocab % 8)))"
loads = "min(16, ROW_LOADS * full // vec)"
need = "ceil_div(vocab, vec * loads)"
lanes = "8 + 8 * min(1, (need - 1) // 8) + 16 * min(1, (need - 1) // 16)"
threads = "min(1024, lanes * ceil_div(need, 32))"
groups = "max(1, BLOCK // threads)"
all = "ceil_div(vocab, threads * vec)"
pieces = "min(all, max(loads, min(16, HELD * full // vec)))"
chunks = "ceil_div(all, pieces)"

[workspace]
kept = { shape = [1], dtype = "int32" }

[[launch]]
entry = "count_kept"
grid = [1]
block = [1024]
args = ["targets", "kept", "rows", "ignore_index"]

[[launch]]
entry = "gradient_of_rows"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
args = ["grad_loss", "logits", "targets", "lse", "kept", "grad_logits", "rows", "ignore_index", "label_smoothing"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int LANES = threads < 32 ? threads : 32, WARPS = (threads + 31) / 32;

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

__device__ __forceinline__ int place(int chunk, int i) {
    return ((chunk * pieces + i) * threads + threadIdx.x % threads) * vec;
}

// What lies beyond the row is zero.
template <class T>
__device__ __forceinline__ void fetch(Pack<T> (&to)[pieces], const T* __restrict__ row, int chunk, bool inside) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int at = place(chunk, i);
        if (inside && at < vocab) to[i] = *reinterpret_cast<const Pack<T>*>(row + at);
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
    *reinterpret_cast<Pack<T>*>(to) = result;
}

extern "C" __global__ void __launch_bounds__(1024)
count_kept(const long long* __restrict__ targets, int* __restrict__ kept, int rows, long long ignore_index) {
    __shared__ int counts[32];
    int count = 0;
#pragma unroll 4
    for (int row = threadIdx.x; row < rows; row += 1024) count += targets[row] != ignore_index;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
    __syncthreads();
    count = counts[threadIdx.x % 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
    if (threadIdx.x == 0) *kept = count;
}

extern "C" __global__ void __launch_bounds__(threads * groups)
gradient_of_rows(const float* __restrict__ grad_loss, const logits_t* __restrict__ logits,
                 const long long* __restrict__ targets, const float* __restrict__ lse, const int* __restrict__ kept,
                 grad_logits_t* __restrict__ grad_logits, int rows, long long ignore_index, float label_smoothing) {
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / threads;
    const bool inside = row < rows;
    const long long target = inside ? targets[row] : ignore_index;
    const float scale = target == ignore_index ? 0.0f : *grad_loss / *kept;
    const float even = label_smoothing / vocab, all = inside ? lse[row] : 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        Pack<logits_t> held[pieces];
        fetch(held, logits + row * vocab, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (!inside || at >= vocab) continue;
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float log_prob = float(held[i].at[e]) - all;
                float off = (sizeof(logits_t) == 2 ? __expf(log_prob) : expf(log_prob)) - even;
                // There expm1 has the 1 already taken off: rounded near 1, little would be left of the difference.
                if (at + e == target) off = expm1f(log_prob) + (label_smoothing - even);
                result[e] = off * scale;
            }
            store(grad_logits + row * vocab + at, result);
        }
    }
}
