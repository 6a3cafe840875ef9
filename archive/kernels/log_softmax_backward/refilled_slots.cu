/*---
op = "log_softmax_backward"
note = "persistent blocks, or several that meet for a long row: cp.async fills private slots in shared memory, and as soon as a value is written out its slot is filled with the next row's, so that reads and writes never wait for each other; rows that are no multiple of 16 bytes come in whole aligned pieces, too"
when = "cols * itemsize(out) >= 1024"
specialize = ["cols", "cps", "threads", "parts", "share", "per_sm", "teams", "elements"]
require = ["first_parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 108]
THREADS = [256, 128, 512]
PACKS = [8, 4, 16]
RESIDENT = [1024, 768, 1536]

[let]
full = "16 // itemsize(out)"
elements = "rows * cols"
cps = "ceil_div(cols + min(1, cols % full) * (full - 1), full)"
first_parts = "ceil_div(cps * 16 * 2, KILOBYTES * 1024)"
threads = "min(THREADS, 32 * ceil_div(ceil_div(cps * 2, first_parts), 32 * PACKS))"
per_sm = "min(32, RESIDENT // threads, 226 * 1024 // (ceil_div(cps, first_parts) * 16 * 2 + 1536))"
rounds = "ceil_div(rows, max(1, min(rows, sms * per_sm // first_parts)))"
teams = "ceil_div(rows, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, cps // (threads * PACKS)))"
share = "ceil_div(cps, parts)"
several = "min(1, parts - 1)"

[workspace]
met = { shape = ["rows * several", "parts"], dtype = "float64" }
arrived = { shape = ["rows * several"], dtype = "int32", zero = true }

[[launch]]
entry = "log_softmax_backward_rows"
grid = ["teams * parts * several"]
block = ["threads"]
shared = "share * 16 * 2"
args = ["grad_out", "out", "grad_x", "met", "arrived", "rows"]
cooperative = true

[[launch]]
entry = "log_softmax_backward_rows"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * 16 * 2"
args = ["grad_out", "out", "grad_x", "met", "arrived", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(out_t), WARPS = threads / 32;
constexpr bool ALIGNED = cols % VEC == 0;
constexpr int UNROLL = ALIGNED ? 4 : 1;
extern __shared__ uint4 held[];  // each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    out_t at[VEC];
};

// Sixteen bytes of a tensor: where they begin, and which of their values belong to the row.
struct Place {
    long long first;
    int begin, end;
};

__device__ __forceinline__ Place place(int row, int chunk) {
    const long long from = row * (long long)cols;
    if constexpr (ALIGNED) return {from + chunk * VEC, 0, VEC};
    const long long first = (from / VEC + chunk) * VEC, end = from + cols;
    return {first, int(max(from - first, 0ll)), int(min(max(end - first, 0ll), (long long)VEC))};
}

__device__ __forceinline__ void fetch(uint4* to, const out_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ void fetch_chunk(uint4* to, const out_t* from, const Place& where) {
    if constexpr (ALIGNED) fetch(to, from + where.first);
    else {  // nothing behind the end of a tensor is read
        const int values = where.begin < where.end ? int(min((long long)VEC, elements - where.first)) : 0;
        if (values == VEC) fetch(to, from + where.first);
        else {  // one by one: a tool that watches memory takes any cp.async for a read of all its bytes
            Pack rest;
#pragma unroll
            for (int j = 0; j < VEC; ++j) rest.at[j] = j < values ? from[where.first + j] : out_t(0.0f);
            *to = rest.raw;
        }
    }
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ void store(out_t* to, const float (&result)[VEC], const Place& where) {
    Pack some;
#pragma unroll
    for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
    if (ALIGNED || (where.begin == 0 && where.end == VEC)) __stcs(reinterpret_cast<uint4*>(to + where.first), some.raw);
    else {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            if (j >= where.begin && j < where.end) to[where.first + j] = some.at[j];
        }
    }
}

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(out_t) == 2) return __expf(x);
    else return expf(x);
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// The sum over the block, in every thread; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ double sum_of_block(double sum, int turn) {
    sum = sum_of_warp(sum);
    if constexpr (WARPS > 1) {
        __shared__ double all[2][WARPS];
        if (threadIdx.x % 32 == 0) all[turn][threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0.0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum += all[turn][warp];
    }
    return sum;
}

// The sum over all blocks of a row.
__device__ __forceinline__ double sum_of_parts(double* met, int* arrived, int part, double sum, int turn) {
    __shared__ double joint[2];
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            met[part] = sum;
            __threadfence();
            atomicAdd(arrived, 1);
            while (atomicAdd(arrived, 0) < parts) {}
            __threadfence();
        }
        __syncwarp();
        const volatile double* of = met;
        sum = 0.0;
        for (int p = threadIdx.x; p < parts; p += 32) sum += of[p];
        sum = sum_of_warp(sum);
        if (threadIdx.x == 0) joint[turn] = sum;
    }
    __syncthreads();
    return joint[turn];
}

extern "C" __global__ void __launch_bounds__(threads, per_sm)
log_softmax_backward_rows(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out, grad_x_t* __restrict__ grad_x,
                          double* met, int* arrived, int rows) {
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, cps - first), 0);
    int row = blockIdx.x / parts;
#pragma unroll 4
    for (int slot = threadIdx.x; slot < own; slot += threads) {
        const Place where = place(row, first + slot);
        fetch_chunk(held + slot, grad_out, where);
        fetch_chunk(held + share + slot, out, where);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int turn = 0; row < rows; row += teams, turn ^= 1) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        double sum = 0.0;
#pragma unroll UNROLL
        for (int slot = threadIdx.x; slot < own; slot += threads) {
            Pack grad;
            grad.raw = held[slot];
            const Place where = place(row, first + slot);
            float few = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                if (ALIGNED || (j >= where.begin && j < where.end)) few += float(grad.at[j]);
            }
            sum += few;
        }
        sum = sum_of_block(sum, turn);
        if constexpr (parts > 1) sum = sum_of_parts(met + (long long)row * parts, arrived + row, part, sum, turn);
        const float high = float(sum), low = isinf(high) ? 0.0f : float(sum - high);  // inf - inf is NaN
        const int next = row + teams;
#pragma unroll UNROLL
        for (int slot = threadIdx.x; slot < own; slot += threads) {
            const Place where = place(row, first + slot);
            float result[VEC];
            Pack grad, some;
            grad.raw = held[slot], some.raw = held[share + slot];
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const float share_of_it = exp_of(float(some.at[j]));
                result[j] = fmaf(-share_of_it, high, float(grad.at[j])) - share_of_it * low;
            }
            store(grad_x, result, where);
            if (next < rows) {
                const Place then = place(next, first + slot);
                fetch_chunk(held + slot, grad_out, then);
                fetch_chunk(held + share + slot, out, then);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
}
