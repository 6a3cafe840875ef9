/*---
op = "layer_norm_backward"
note = "few instructions for each value: a row comes by cp.async through slots that are each thread's own, becomes numbers in registers once, and stays there until its sums are known; rows of up to 32 loads of 16 bytes four times over are a warp's, without any barrier, longer ones a block's; a second launch adds up the sums of the blocks in order"
when = "cols * itemsize(x) % 16 == 0 and cols * itemsize(x) <= 32768"
specialize = ["cols", "threads", "groups", "pieces", "depth", "per_sm", "teams"]
require = ["depth * stage_bytes * per_sm <= 222 * 1024", "pieces * 16 // itemsize(x) <= 32", "groups * cols * 4 <= depth * stage_bytes or groups == 1"]

[knobs]
BLOCK = [384, 256, 320, 512]
RESIDENT = [512, 256, 768]
MANY = [1, 2]

[let]
full = "16 // itemsize(x)"
need = "cols // full"
many = "min(1, (need - 1) // 128)"
threads = "32 + many * (min(512, 32 * ceil_div(need, 32 * MANY * 16 // full)) - 32)"
groups = "many + (1 - many) * (BLOCK // 32)"
pieces = "ceil_div(need, threads)"
per_sm = "many * max(1, RESIDENT // threads) + 1 - many"
stage_bytes = "groups * threads * pieces * 32"
depth = "max(2, min(8, 216 * 1024 // per_sm // stage_bytes))"
teams = "min(ceil_div(rows, groups), sms * per_sm)"

[workspace]
weight_sums = { shape = ["teams", "cols"], dtype = "float32" }
bias_sums = { shape = ["teams", "cols"], dtype = "float32" }

[[launch]]
entry = "grad_of_rows"
grid = ["teams"]
block = ["threads * groups"]
shared = "depth * stage_bytes"
args = ["grad_out", "x", "mean", "rstd", "weight", "grad_x", "weight_sums", "bias_sums", "rows"]

[[launch]]
entry = "sum_teams"
grid = ["ceil_div(cols, 32)"]
block = [32, 32]
args = ["weight_sums", "bias_sums", "grad_weight", "grad_bias"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = threads / 32, BLOCK_THREADS = threads * groups, VEC = 16 / sizeof(x_t), INPUTS = 2;
constexpr bool KEPT = pieces * VEC <= 16 || WARPS == 1;  // otherwise registers would not suffice
extern __shared__ uint4 memory[];  // each thread reads only the slots that it fills

// Neighbouring values that one access moves.
template <class T> struct alignas(16) Pack { T at[VEC]; };

__device__ __forceinline__ int place(int i) { return (i * threads + threadIdx.x % threads) * VEC; }

__device__ __forceinline__ void copy16(void* to, const void* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

// The numbers of sixteen bytes, with one instruction each.
__device__ __forceinline__ float2 pair_of(unsigned two, const __nv_bfloat16*) {
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
}
__device__ __forceinline__ float2 pair_of(unsigned two, const __half*) {
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
}
template <class T> __device__ __forceinline__ void numbers(float (&to)[VEC], uint4 raw, const T* type) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if constexpr (sizeof(T) == 4) to[k] = __uint_as_float(words[k]);
        else {
            const float2 pair = pair_of(words[k], type);
            to[2 * k] = pair.x, to[2 * k + 1] = pair.y;
        }
    }
}

// Two sums over the threads of a row, in each of them; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ float2 sum_of_row(float2 of, int turn) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        of.x += __shfl_xor_sync(0xffffffffu, of.x, step);
        of.y += __shfl_xor_sync(0xffffffffu, of.y, step);
    }
    if constexpr (WARPS > 1) {
        __shared__ float2 sums[2][WARPS];
        const int lane = threadIdx.x % 32;
        if (lane == 0) sums[turn][threadIdx.x / 32] = of;
        __syncthreads();
        of = lane < WARPS ? sums[turn][lane] : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            of.x += __shfl_xor_sync(0xffffffffu, of.x, step);
            of.y += __shfl_xor_sync(0xffffffffu, of.y, step);
        }
    }
    return of;
}

// The sums of the groups of a block.
__device__ __forceinline__ void store_sums(float* to, const float (&sum)[pieces][VEC]) {
    float* const all = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (place(i) >= cols) continue;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            if constexpr (groups == 1) to[place(i) + e] = sum[i][e];
            else all[threadIdx.x / threads * cols + place(i) + e] = sum[i][e];
        }
    }
    if constexpr (groups > 1) {
        __syncthreads();
        for (int col = threadIdx.x; col < cols; col += BLOCK_THREADS) {
            float total = 0.0f;
#pragma unroll
            for (int group = 0; group < groups; ++group) total += all[group * cols + col];
            to[col] = total;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, per_sm)
grad_of_rows(const x_t* __restrict__ grad_out, const x_t* __restrict__ x,
             const float* __restrict__ mean, const float* __restrict__ rstd, const weight_t* __restrict__ weight,
             x_t* __restrict__ grad_x, float* __restrict__ weight_sums, float* __restrict__ bias_sums, long long rows) {
    const int group = threadIdx.x / threads;
    const auto row_of = [&](int step) { return ((long long)step * teams + blockIdx.x) * groups + group; };
    const int steps = int((rows + (long long)teams * groups - 1) / ((long long)teams * groups));
    const auto slots = [&](int step, int input) {
        return memory + ((step % depth * INPUTS + input) * pieces) * BLOCK_THREADS + threadIdx.x;
    };
    const auto request = [&](int step) {
        const long long row = row_of(step);
        if (step < steps && row < rows) {
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
                if (place(i) >= cols) continue;
                copy16(slots(step, 0) + i * BLOCK_THREADS, grad_out + row * cols + place(i));
                copy16(slots(step, 1) + i * BLOCK_THREADS, x + row * cols + place(i));
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int step = 0; step < depth - 1; ++step) request(step);
    Pack<weight_t> gain[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (place(i) < cols) gain[i] = *reinterpret_cast<const Pack<weight_t>*>(weight + place(i));
        else gain[i] = Pack<weight_t>{};
    }
    float along_sum[pieces][VEC] = {}, plain_sum[pieces][VEC] = {};
    float next_centre = 0.0f, next_scale = 0.0f;
    const auto statistics = [&](int step) {
        const long long row = row_of(step);
        if (row < rows) next_centre = mean[row], next_scale = rstd[row];
    };
    statistics(0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const long long row = row_of(step);
        asm volatile("cp.async.wait_group %0;" ::"n"(depth - 2) : "memory");
        request(step + depth - 1);
        const uint4* const grads = slots(step, 0);
        const uint4* const values = slots(step, 1);
        const float centre = next_centre, scale = next_scale;
        statistics(step + 1);
        float2 sum = make_float2(0.0f, 0.0f);  // of the weighted gradients, and of them times the normed values
        float first[KEPT ? pieces : 1][VEC], second[KEPT ? pieces : 1][VEC];  // weighted gradients and normed values
        const auto read = [&](int i, float (&grad)[VEC], float (&of_first)[VEC], float (&of_second)[VEC]) {
            float factor[VEC];
            numbers(grad, grads[i * BLOCK_THREADS], x), numbers(of_second, values[i * BLOCK_THREADS], x);
            numbers(factor, *reinterpret_cast<const uint4*>(&gain[i]), weight);
#pragma unroll
            for (int e = 0; e < VEC; ++e) of_first[e] = grad[e] * factor[e], of_second[e] = (of_second[e] - centre) * scale;
        };
        if (row < rows) {
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
                if (place(i) >= cols) continue;
                float (&of_first)[VEC] = first[KEPT ? i : 0], (&of_second)[VEC] = second[KEPT ? i : 0];
                float grad[VEC];
                read(i, grad, of_first, of_second);
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    sum.x += of_first[e];
                    sum.y = fmaf(of_first[e], of_second[e], sum.y);
                    plain_sum[i][e] += grad[e];
                    along_sum[i][e] = fmaf(grad[e], of_second[e], along_sum[i][e]);
                }
            }
        }
        sum = sum_of_row(sum, step % 2);
        if (row >= rows) continue;
        const float plain = sum.x / cols, along = sum.y / cols;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            if (place(i) >= cols) continue;
            float (&of_first)[VEC] = first[KEPT ? i : 0], (&of_second)[VEC] = second[KEPT ? i : 0];
            if constexpr (!KEPT) {
                float grad[VEC];
                read(i, grad, of_first, of_second);
            }
            Pack<x_t> result;
#pragma unroll
            for (int e = 0; e < VEC; e += 2) {
                float both[2];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float one = of_first[e + h], other = of_second[e + h];
                    both[h] = scale * (fmaf(-other, along, one) - plain);
                }
                put(&result.at[e], both[0], both[1]);
            }
            __stcs(reinterpret_cast<uint4*>(grad_x + row * cols + place(i)), *reinterpret_cast<const uint4*>(&result));
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    if constexpr (groups > 1) __syncthreads();
    store_sums(weight_sums + (long long)blockIdx.x * cols, along_sum);
    store_sums(bias_sums + (long long)blockIdx.x * cols, plain_sum);
}

// A warp's width of columns, 32 threads to each.
extern "C" __global__ void __launch_bounds__(1024)
sum_teams(const float* __restrict__ weight_sums, const float* __restrict__ bias_sums,
          grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias) {
    __shared__ float met[32][33];
    const auto total_of = [&](const float* sums) {
        const int col = blockIdx.x * 32 + threadIdx.x;
        float total = 0.0f;
#pragma unroll 8
        for (int team = threadIdx.y; team < teams && col < cols; team += 32) total += sums[(long long)team * cols + col];
        met[threadIdx.y][threadIdx.x] = total;
        __syncthreads();
        total = met[threadIdx.x][threadIdx.y];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
        __syncthreads();
        return total;
    };
    const int own = blockIdx.x * 32 + threadIdx.y;
    const float along = total_of(weight_sums), plain = total_of(bias_sums);
    if (threadIdx.x > 0 || own >= cols) return;
    grad_weight[own] = grad_weight_t(along);
    grad_bias[own] = grad_bias_t(plain);
}
