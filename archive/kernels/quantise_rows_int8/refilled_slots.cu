/*---
op = "quantise_rows_int8"
note = "persistent blocks, one row at a time: cp.async fills private slots in shared memory, the largest magnitude is found there, and as soon as a piece is written its slot is filled with the next row's, so that reads and writes never wait for each other; numbers are rounded by adding 1.5 * 2^23, whose last byte is then the result"
when = "cols % 16 == 0 and cols >= 1024 and cols * itemsize(x) <= 98304"
specialize = ["cols", "pieces", "threads", "per_sm"]

[knobs]
PACKS = [8, 4, 14]
RESIDENT = [1536, 1024, 2048]

[let]
pieces = "cols * itemsize(x) // 16"
threads = "min(1024, 32 * ceil_div(pieces, 32 * PACKS))"
per_sm = "max(1, min(32, RESIDENT // threads, 226 * 1024 // (pieces * 16 + 1280)))"

[[launch]]
entry = "quantise_slots"
grid = ["min(rows, sms * per_sm)"]
block = ["threads"]
shared = "pieces * 16"
args = ["x", "quantised", "scales", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32;
constexpr float LARGEST = 127.0f, LEAST = 1e-10f, SHIFT = 12582912.0f;
extern __shared__ uint4 held[];  // each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    x_t at[VEC];
};

struct alignas(VEC) Bytes { unsigned at[VEC / 4]; };

__device__ __forceinline__ void fetch(uint4* to, const x_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ float most_of_warp(float most) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
}

__device__ __forceinline__ unsigned rounded(x_t value, float factor) {
    return __float_as_uint(fminf(fmaxf(float(value) * factor, -LARGEST), LARGEST) + SHIFT);
}

extern "C" __global__ void __launch_bounds__(threads, per_sm)
quantise_slots(const x_t* __restrict__ x, quantised_t* __restrict__ quantised, float* __restrict__ scales, int rows) {
    __shared__ float mosts[2][WARPS];
    const int lane = threadIdx.x % 32;
    long long row = blockIdx.x;
#pragma unroll 4
    for (int slot = threadIdx.x; slot < pieces; slot += threads) fetch(held + slot, x + row * cols + slot * VEC);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int turn = 0; row < rows; row += gridDim.x, turn ^= 1) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        float most = LEAST;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < pieces; slot += threads) {
            Pack some;
            some.raw = held[slot];
#pragma unroll
            for (int j = 0; j < VEC; ++j) most = fmaxf(most, fabsf(float(some.at[j])));
        }
        most = most_of_warp(most);
        if constexpr (WARPS > 1) {
            if (lane == 0) mosts[turn][threadIdx.x / 32] = most;
            __syncthreads();
            most = most_of_warp(lane < WARPS ? mosts[turn][lane] : LEAST);
        }
        const float factor = __fdiv_rn(LARGEST, most);
        const long long next = row + gridDim.x;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < pieces; slot += threads) {
            Pack some;
            some.raw = held[slot];
            Bytes result;
#pragma unroll
            for (int j = 0; j < VEC; j += 4) {
                const unsigned low = __byte_perm(rounded(some.at[j], factor), rounded(some.at[j + 1], factor), 0x0040);
                const unsigned high = __byte_perm(rounded(some.at[j + 2], factor), rounded(some.at[j + 3], factor), 0x0040);
                result.at[j / 4] = __byte_perm(low, high, 0x5410);
            }
            *reinterpret_cast<Bytes*>(quantised + row * cols + slot * VEC) = result;
            if (next < rows) fetch(held + slot, x + next * cols + slot * VEC);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (threadIdx.x == 0) scales[row] = __fdiv_rn(most, LARGEST);
    }
}
