/*---
op = "add_layer_norm_backward"
note = "long rows: persistent blocks, and a ring in shared memory of pieces of rows, 16 bytes of each input for each thread; a row stays there until its sums are known, and each piece of it that is done with makes room for one of the next row, so that tens of kilobytes are on the way at any time; threads read only what they fetched, and meet once a row"
when = "cols * itemsize(summed) % 16 == 0 and cols * itemsize(summed) <= 57344"
specialize = ["cols", "threads", "pieces", "depth", "teams"]
require = ["depth > pieces"]

[knobs]
THREADS = [768, 512, 1024]

[let]
packs = "cols * itemsize(summed) // 16"
threads = "min(THREADS, ceil_div(packs, 32) * 32)"
pieces = "ceil_div(packs, threads)"
depth = "min(2 * pieces, 222 * 1024 // (threads * 48))"
teams = "min(rows, sms)"

[workspace]
weight_sums = { shape = ["teams", "cols"], dtype = "float32" }
bias_sums = { shape = ["teams", "cols"], dtype = "float32" }

[[launch]]
entry = "grad_of_rows"
grid = ["teams"]
block = ["threads"]
shared = "depth * threads * 48"
args = ["grad_out", "grad_summed", "summed", "mean", "rstd", "weight", "grad_x", "weight_sums", "bias_sums", "rows"]

[[launch]]
entry = "sum_teams"
grid = ["ceil_div(cols, 32)"]
block = [32, 32]
args = ["weight_sums", "bias_sums", "grad_weight", "grad_bias"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = threads / 32, vec = 16 / sizeof(summed_t);
extern __shared__ uint4 memory[];

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

__device__ __forceinline__ int place(int i) { return (i * threads + threadIdx.x) * vec; }

__device__ __forceinline__ void copy16(void* to, const void* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ Pack<summed_t>& held(int slot, int input) {
    return reinterpret_cast<Pack<summed_t>*>(memory)[(slot * 3 + input) * threads + threadIdx.x];
}

template <int NEWER> __device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(NEWER) : "memory");
}
// Until piece number i of a row has come; the ring was full when the row began.
template <int FIRST = 0> __device__ __forceinline__ void wait_for(int i) {
    if constexpr (FIRST < pieces) {
        if (i == FIRST) wait<depth - 1 - FIRST>();
        else wait_for<FIRST + 1>(i);
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
    *reinterpret_cast<Pack<T>*>(to) = result;
}

// Two sums over the threads, in each of them; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ float2 sum_of_row(float2 of, int turn) {
    __shared__ float2 sums[2][WARPS];
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        of.x += __shfl_xor_sync(0xffffffffu, of.x, step);
        of.y += __shfl_xor_sync(0xffffffffu, of.y, step);
    }
    if (lane == 0) sums[turn][threadIdx.x / 32] = of;
    __syncthreads();
    of = lane < WARPS ? sums[turn][lane] : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        of.x += __shfl_xor_sync(0xffffffffu, of.x, step);
        of.y += __shfl_xor_sync(0xffffffffu, of.y, step);
    }
    return of;
}

extern "C" __global__ void __launch_bounds__(threads, 1)
grad_of_rows(const summed_t* __restrict__ grad_out, const summed_t* __restrict__ grad_summed, const summed_t* __restrict__ summed,
             const float* __restrict__ mean, const float* __restrict__ rstd, const weight_t* __restrict__ weight,
             summed_t* __restrict__ grad_x, float* __restrict__ weight_sums, float* __restrict__ bias_sums, long long rows) {
    long long ahead = blockIdx.x;  // the row and piece to be asked for next, and the slot for it
    int ahead_piece = 0, ahead_slot = 0;
    const auto request = [&] {
        const long long at = ahead * cols + place(ahead_piece);
        if (ahead < rows && place(ahead_piece) < cols) {
            copy16(&held(ahead_slot, 0), grad_out + at);
            copy16(&held(ahead_slot, 1), summed + at);
            copy16(&held(ahead_slot, 2), grad_summed + at);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (++ahead_piece == pieces) ahead_piece = 0, ahead += teams;
        if (++ahead_slot == depth) ahead_slot = 0;
    };
#pragma unroll 1
    for (int i = 0; i < depth; ++i) request();
    Pack<weight_t> gain[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (place(i) < cols) gain[i] = *reinterpret_cast<const Pack<weight_t>*>(weight + place(i));
        else gain[i] = Pack<weight_t>{};
    }
    float along_sum[pieces][vec] = {}, plain_sum[pieces][vec] = {};
    float next_centre = mean[blockIdx.x], next_scale = rstd[blockIdx.x];
    int first = 0, turn = 0;  // the slot of the row's first piece
#pragma unroll 1
    for (long long row = blockIdx.x; row < rows; row += teams, turn ^= 1) {
        const float centre = next_centre, scale = next_scale;
        if (row + teams < rows) next_centre = mean[row + teams], next_scale = rstd[row + teams];
        float2 sum = make_float2(0.0f, 0.0f);  // of the weighted gradients, and of them times the normed values
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            wait_for(i);
            if (place(i) >= cols) continue;
            const int slot = first + i < depth ? first + i : first + i - depth;
            const Pack<summed_t> grad = held(slot, 0), value = held(slot, 1);
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float one = float(grad.at[e]), normed = (float(value.at[e]) - centre) * scale;
                const float weighted = one * float(gain[i].at[e]);
                sum.x += weighted;
                sum.y = fmaf(weighted, normed, sum.y);
                plain_sum[i][e] += one;
                along_sum[i][e] = fmaf(one, normed, along_sum[i][e]);
            }
        }
        sum = sum_of_row(sum, turn);
        const float plain = sum.x / cols, along = sum.y / cols;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            if (place(i) < cols) {
                const Pack<summed_t> grad = held(first, 0), value = held(first, 1), other = held(first, 2);
                float result[vec];
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    const float normed = (float(value.at[e]) - centre) * scale;
                    result[e] = float(other.at[e]) + scale * (float(grad.at[e]) * float(gain[i].at[e]) - plain - normed * along);
                }
                store(grad_x + row * cols + place(i), result);
            }
            request();
            if (++first == depth) first = 0;
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (place(i) >= cols) continue;
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            weight_sums[(long long)blockIdx.x * cols + place(i) + e] = along_sum[i][e];
            bias_sums[(long long)blockIdx.x * cols + place(i) + e] = plain_sum[i][e];
        }
    }
}

// A warp's width of columns, 32 threads to each.
extern "C" __global__ void __launch_bounds__(1024)
sum_teams(const float* __restrict__ weight_sums, const float* __restrict__ bias_sums, grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias) {
    const int col = blockIdx.x * 32 + threadIdx.x;
    float along = 0.0f, plain = 0.0f;
#pragma unroll 8
    for (int team = threadIdx.y; team < teams && col < cols; team += 32) {
        along += weight_sums[(long long)team * cols + col];
        plain += bias_sums[(long long)team * cols + col];
    }
    __shared__ float alongs[32][33], plains[32][33];
    alongs[threadIdx.y][threadIdx.x] = along;
    plains[threadIdx.y][threadIdx.x] = plain;
    __syncthreads();
    along = alongs[threadIdx.x][threadIdx.y];
    plain = plains[threadIdx.x][threadIdx.y];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        along += __shfl_xor_sync(0xffffffffu, along, step);
        plain += __shfl_xor_sync(0xffffffffu, plain, step);
    }
    const int own = blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x > 0 || own >= cols) return;
    grad_weight[own] = grad_weight_t(along);
    grad_bias[own] = grad_bias_t(plain);
}
