/*---
op = "rms_norm_silu"
note = "a group of threads per row, from 8 to 1024; the widest loads the row allows, x and z stay in registers and the gated product is made once; longer rows are read again in pieces; the gate by a fast quotient; results are stored in accesses as wide as the loads"
specialize = ["cols", "vec", "threads", "groups", "pieces", "chunks"]
require = ["threads * groups <= 1024", "2 * pieces * max(1, vec * itemsize(x) // 4) * threads * groups <= 32768"]

[knobs]
ROW_LOADS = [2, 1, 4, 8]
HELD = [4, 2, 8]
BLOCK = [128, 256, 512]

[let]
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, cols % 2)) + 2 * (1 - min(1, cols % 4)) + 4 * (1 - min(1, cols % 8)))"
loads = "min(16, ROW_LOADS * full // vec)"
need = "ceil_div(cols, vec * loads)"
lanes = "8 + 8 * min(1, (need - 1) // 8) + 16 * min(1, (need - 1) // 16)"
threads = "min(1024, lanes * ceil_div(need, 32))"
groups = "max(1, BLOCK // threads)"
all = "ceil_div(cols, threads * vec)"
pieces = "min(all, max(loads, min(16, HELD * full // vec)))"
chunks = "ceil_div(all, pieces)"

[[launch]]
entry = "rms_norm_silu_rows"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
args = ["x", "z", "weight", "out", "rows", "eps"]
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
        if (inside && at < cols) to[i] = *reinterpret_cast<const Pack<T>*>(row + at);
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

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 4) return expf(x);
    float result;  // without the steps that keep subnormal numbers
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
}

__device__ __forceinline__ float gated(float x, float z) {
    return x * __fdividef(z, 1.0f + exp_of(-z));
}

extern "C" __global__ void __launch_bounds__(threads * groups)
rms_norm_silu_rows(const x_t* __restrict__ x, const z_t* __restrict__ z, const weight_t* __restrict__ weight,
                   out_t* __restrict__ out, int rows, float eps) {
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / threads;
    const bool inside = row < rows;
    Pack<x_t> held[pieces];
    Pack<z_t> gate[pieces];
    float value[pieces][vec], sum = 0.0f;
    const auto read = [&](int chunk) {
        fetch(held, x + row * cols, chunk, inside);
        fetch(gate, z + row * cols, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) value[i][e] = gated(float(held[i].at[e]), float(gate[i].at[e]));
        }
    };
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        read(chunk);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) sum = fmaf(value[i][e], value[i][e], sum);
        }
    }
    const float scale = rsqrtf(sum_of_row<0>(sum) / cols + eps);
#pragma unroll 1
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        if (chunk < chunks - 1) read(chunk);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (!inside || at >= cols) continue;
            const Pack<weight_t> gain = *reinterpret_cast<const Pack<weight_t>*>(weight + at);
#pragma unroll
            for (int e = 0; e < vec; ++e) value[i][e] *= scale * float(gain.at[e]);
            store(out + row * cols + at, value[i]);
        }
    }
}
