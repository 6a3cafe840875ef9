/*---
op = "add_rms_norm_backward"
note = "persistent blocks: a group of threads takes row after row, reads the next while it works on one, and keeps its sums for the gradient of the weight in registers; so each input is read once; a second launch adds up the blocks' sums, always in the same order"
when = "cols <= 16384"
specialize = ["cols", "vec", "threads", "groups", "pieces", "per_sm", "teams"]
require = ["threads * groups <= 1024", "pieces * vec <= 32"]

[knobs]
ROW_LOADS = [1, 2, 4]
BLOCK = [512, 256, 1024]
PER_SM = [2, 1, 3, 4]
AHEAD = [1, 0]

[let]
full = "16 // itemsize(summed)"
vec = "min(full, 1 + (1 - min(1, cols % 2)) + 2 * (1 - min(1, cols % 4)) + 4 * (1 - min(1, cols % 8)))"
loads = "min(8, ROW_LOADS * full // vec)"
need = "ceil_div(cols, vec * loads)"
lanes = "8 + 8 * min(1, (need - 1) // 8) + 16 * min(1, (need - 1) // 16)"
threads = "min(1024, lanes * ceil_div(need, 32))"
groups = "max(1, BLOCK // threads)"
pieces = "ceil_div(cols, threads * vec)"
per_sm = "max(1, min(PER_SM, 1024 // (threads * groups)))"
teams = "min(ceil_div(rows, groups), sms * per_sm)"

[workspace]
weight_sums = { shape = ["teams", "cols"], dtype = "float32" }

[[launch]]
entry = "grad_of_rows"
grid = ["teams"]
block = ["threads * groups"]
args = ["grad_out", "grad_summed", "summed", "weight", "grad_x", "weight_sums", "rows", "eps"]

[[launch]]
entry = "sum_teams"
grid = ["ceil_div(cols, 32)"]
block = [32, 32]
args = ["weight_sums", "grad_weight"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int LANES = threads < 32 ? threads : 32, WARPS = (threads + 31) / 32;

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

__device__ __forceinline__ int place(int i) { return (i * threads + threadIdx.x % threads) * vec; }

// What lies beyond the row is zero.
template <class T> __device__ __forceinline__ void fetch(Pack<T> (&to)[pieces], const T* __restrict__ row, bool inside) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (inside && place(i) < cols) to[i] = *reinterpret_cast<const Pack<T>*>(row + place(i));
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

// Two sums over the threads of a row, in each of them; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ void sum_of_row(float& a, float& b, int turn) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        a += __shfl_xor_sync(0xffffffffu, a, step);
        b += __shfl_xor_sync(0xffffffffu, b, step);
    }
    if constexpr (WARPS > 1) {
        __shared__ float2 sums[2][groups][WARPS];
        const int lane = threadIdx.x % 32, group = threadIdx.x / threads;
        if (lane == 0) sums[turn][group][threadIdx.x % threads / 32] = make_float2(a, b);
        __syncthreads();
        const float2 one = lane < WARPS ? sums[turn][group][lane] : make_float2(0.0f, 0.0f);
        a = one.x, b = one.y;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            a += __shfl_xor_sync(0xffffffffu, a, step);
            b += __shfl_xor_sync(0xffffffffu, b, step);
        }
    }
}

// The sums of the groups of a block, one after the other.
__device__ __forceinline__ void store_sums(float* to, const float (&sum)[pieces][vec]) {
    if constexpr (groups == 1) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                if (place(i) < cols) to[place(i) + e] = sum[i][e];
            }
        }
    } else {
        __shared__ float all[groups > 1 ? cols : 1];
        for (int group = 0; group < groups; ++group) {
            __syncthreads();
            if (int(threadIdx.x) / threads != group) continue;
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    if (place(i) < cols) all[place(i) + e] = (group > 0 ? all[place(i) + e] : 0.0f) + sum[i][e];
                }
            }
        }
        __syncthreads();
        for (int col = threadIdx.x; col < cols; col += threads * groups) to[col] = all[col];
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(threads * groups, per_sm)
grad_of_rows(const grad_out_t* __restrict__ grad_out, const grad_summed_t* __restrict__ grad_summed,
             const summed_t* __restrict__ summed, const weight_t* __restrict__ weight, grad_x_t* __restrict__ grad_x,
             float* __restrict__ weight_sums, int rows, float eps) {
    const int group = threadIdx.x / threads;
    const long long stride = (long long)teams * groups;
    Pack<weight_t> gain[pieces];
    fetch(gain, weight, true);
    Pack<grad_out_t> grad[pieces], next_grad[pieces];
    Pack<summed_t> value[pieces], next_value[pieces];
    Pack<grad_summed_t> other[pieces], next_other[pieces];
    const auto read = [&](long long row) {
        fetch(next_grad, grad_out + row * cols, row < rows);
        fetch(next_value, summed + row * cols, row < rows);
        fetch(next_other, grad_summed + row * cols, row < rows);
    };
    float along_sum[pieces][vec] = {};
    long long row = (long long)blockIdx.x * groups + group;
    int turn = 0;
#if AHEAD
    read(row);
#endif
    for (; row - group < rows; row += stride, turn ^= 1) {
        const bool inside = row < rows;
#if !AHEAD
        read(row);
#endif
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            grad[i] = next_grad[i];
            value[i] = next_value[i];
            other[i] = next_other[i];
        }
#if AHEAD
        read(row + stride);
#endif
        float squares = 0.0f, along = 0.0f;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float one = float(value[i].at[e]);
                squares = fmaf(one, one, squares);
                along = fmaf(float(grad[i].at[e]) * float(gain[i].at[e]), one, along);
            }
        }
        sum_of_row(squares, along, turn);
        const float scale = rsqrtf(squares / cols + eps);
        along *= scale / cols;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            if (!inside || place(i) >= cols) continue;
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float normed = float(value[i].at[e]) * scale;
                along_sum[i][e] = fmaf(float(grad[i].at[e]), normed, along_sum[i][e]);
                result[e] = float(other[i].at[e]) + scale * (float(grad[i].at[e]) * float(gain[i].at[e]) - normed * along);
            }
            store(grad_x + row * cols + place(i), result);
        }
    }
    store_sums(weight_sums + (long long)blockIdx.x * cols, along_sum);
}

// A warp's width of columns, 32 threads to each.
extern "C" __global__ void __launch_bounds__(1024)
sum_teams(const float* __restrict__ weight_sums, grad_weight_t* __restrict__ grad_weight) {
    const int col = blockIdx.x * 32 + threadIdx.x;
    float along = 0.0f;
#pragma unroll 8
    for (int team = threadIdx.y; team < teams && col < cols; team += 32) {
        along += weight_sums[(long long)team * cols + col];
    }
    __shared__ float alongs[32][33];
    alongs[threadIdx.y][threadIdx.x] = along;
    __syncthreads();
    along = alongs[threadIdx.x][threadIdx.y];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        along += __shfl_xor_sync(0xffffffffu, along, step);
    }
    const int own = blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x > 0 || own >= cols) return;
    grad_weight[own] = grad_weight_t(along);
}
