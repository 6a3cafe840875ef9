/*---
op = "rms_norm_backward"
note = "for long rows: persistent blocks keep one row of both inputs in shared memory, in slots that only their own thread reads; as soon as a piece of the gradient is written its slots are filled with the next row's by cp.async, so that reads and writes overlap although a second row would not fit; registers hold only the weight and the sums for its gradient"
when = "cols % (16 // itemsize(x)) == 0 and cols * itemsize(x) >= 2048 and cols * itemsize(x) <= 114688"
specialize = ["cols", "threads", "pieces", "per_sm", "teams"]
require = ["pieces * 16 // itemsize(x) <= 64"]

[knobs]
PIECES = [4, 2, 8]
RESIDENT = [1024, 1536, 2048]

[let]
need = "cols * itemsize(x) // 16"
threads = "min(1024, 32 * ceil_div(need, 32 * PIECES))"
pieces = "ceil_div(need, threads)"
per_sm = "max(1, min(RESIDENT * itemsize(x) // 4 // threads, 226 * 1024 // (2 * need * 16 + 1024)))"
teams = "min(rows, sms * per_sm)"

[workspace]
weight_sums = { shape = ["teams", "cols"], dtype = "float32" }

[[launch]]
entry = "grad_of_slots"
grid = ["teams"]
block = ["threads"]
shared = "2 * need * 16"
args = ["grad_out", "x", "weight", "grad_x", "weight_sums", "rows", "eps"]

[[launch]]
entry = "sum_teams"
grid = ["ceil_div(cols, 32)"]
block = [32, 32]
args = ["weight_sums", "grad_weight"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), NEED = cols / VEC, WARPS = threads / 32;
extern __shared__ uint4 held[];  // grad_out, then x; each thread reads only the slots that it fills

template <class T> struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Values { T at[VEC]; };

union Pack {
    uint4 raw;
    x_t at[VEC];
};

__device__ __forceinline__ void fetch(uint4* to, const x_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ void put_pair(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put_pair(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put_pair(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

// Two sums over the block, in every thread; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ float2 sum_of_block(float2 of, int turn) {
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

extern "C" __global__ void __launch_bounds__(threads, per_sm)
grad_of_slots(const x_t* __restrict__ grad_out, const x_t* __restrict__ x, const weight_t* __restrict__ weight,
              x_t* __restrict__ grad_x, float* __restrict__ weight_sums, int rows, float eps) {
    const auto request = [&](long long row, int slot) {
        fetch(held + slot, grad_out + row * cols + slot * VEC), fetch(held + NEED + slot, x + row * cols + slot * VEC);
    };
    long long row = blockIdx.x;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int slot = i * threads + threadIdx.x;
        if (slot < NEED) request(row, slot);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    Values<weight_t> gain[pieces];
    float along_sum[pieces][VEC] = {};
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int slot = i * threads + threadIdx.x;
        if (slot < NEED) gain[i] = *reinterpret_cast<const Values<weight_t>*>(weight + slot * VEC);
        else gain[i] = Values<weight_t>{};
    }
#pragma unroll 1
    for (int turn = 0; row < rows; row += teams, turn ^= 1) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        float2 sum = make_float2(0.0f, 0.0f);  // of the squares, and of the weighted gradients times the values
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int slot = i * threads + threadIdx.x;
            if (slot >= NEED) continue;
            Pack grad, some;
            grad.raw = held[slot], some.raw = held[NEED + slot];
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                const float one = float(some.at[e]);
                sum.x = fmaf(one, one, sum.x);
                sum.y = fmaf(float(grad.at[e]) * float(gain[i].at[e]), one, sum.y);
            }
        }
        sum = sum_of_block(sum, turn);
        const float scale = rsqrtf(sum.x / cols + eps), along = sum.y * (scale / cols);
        const long long next = row + teams;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int slot = i * threads + threadIdx.x;
            if (slot >= NEED) continue;
            Pack grad, some;
            grad.raw = held[slot], some.raw = held[NEED + slot];
            float result[VEC];
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                const float normed = float(some.at[e]) * scale;
                along_sum[i][e] = fmaf(float(grad.at[e]), normed, along_sum[i][e]);
                result[e] = scale * (float(grad.at[e]) * float(gain[i].at[e]) - normed * along);
            }
#pragma unroll
            for (int e = 0; e < VEC; e += 2) put_pair(&some.at[e], result[e], result[e + 1]);
            __stcs(reinterpret_cast<uint4*>(grad_x + row * cols + slot * VEC), some.raw);
            if (next < rows) request(next, slot);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float* const sums = weight_sums + (long long)blockIdx.x * cols;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int slot = i * threads + threadIdx.x;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            if (slot < NEED) sums[slot * VEC + e] = along_sum[i][e];
        }
    }
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
