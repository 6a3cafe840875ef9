/*---
op = "instance_norm_backward"
note = "a persistent block, or several that meet, per channel of an image: cp.async fills private slots in shared memory with grad_out and x, and as soon as a value of grad_x is written out its slots are filled with the next set's, so reads and writes never wait for each other; unaligned rows by whole 16-byte pieces"
specialize = ["seg", "segments", "seg_step", "cps", "total", "threads", "parts", "share", "per_sm", "teams", "elements", "per", "count", "channels"]
require = ["first_parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 128, 512]
PACKS = [8, 4, 16]
RESIDENT = [1024, 768, 1536]

[let]
per = "area"
count = "batch * channels"
seg = "area"
segments = 1
seg_step = 0
full = "16 // itemsize(x)"
elements = "count * segments * seg"
cps = "ceil_div(seg + min(1, seg % full) * (full - 1), full)"
total = "segments * cps"
first_parts = "ceil_div(total * 32, KILOBYTES * 1024)"
threads = "min(THREADS, 32 * ceil_div(2 * ceil_div(total, first_parts), 32 * PACKS))"
per_sm = "min(32, RESIDENT // threads, 226 * 1024 // (ceil_div(total, first_parts) * 32 + 2048))"
rounds = "ceil_div(count, max(1, min(count, sms * per_sm // first_parts)))"
teams = "ceil_div(count, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, 2 * total // (threads * PACKS)))"
share = "ceil_div(total, parts)"
several = "min(1, parts - 1)"

[workspace]
plain_sums = { shape = ["batch", "channels"], dtype = "float32" }
along_sums = { shape = ["batch", "channels"], dtype = "float32" }
met = { shape = ["count * several", "parts", 2], dtype = "float64" }
arrived = { shape = ["count * several"], dtype = "int32", zero = true }

[[launch]]
entry = "grad_of_sets"
grid = ["teams * parts * several"]
block = ["threads"]
shared = "share * 32"
args = ["grad_out", "x", "mean", "rstd", "weight", "grad_x", "along_sums", "plain_sums", "met", "arrived"]
cooperative = true

[[launch]]
entry = "grad_of_sets"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * 32"
args = ["grad_out", "x", "mean", "rstd", "weight", "grad_x", "along_sums", "plain_sums", "met", "arrived"]

[[launch]]
entry = "sum_images"
grid = ["channels"]
block = [32]
args = ["plain_sums", "along_sums", "grad_weight", "grad_bias", "batch"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32, SLOTS = (share + threads - 1) / threads;
constexpr bool ALIGNED = seg % VEC == 0;
constexpr int UNROLL = ALIGNED ? 4 : 1;
extern __shared__ uint4 held[];  // each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    x_t at[VEC];
};

// Sixteen bytes of x: where they begin, and which of their values belong to the set.
struct Place {
    long long first;
    int begin, end;
};

__device__ __forceinline__ long long base(int set) { return set * (long long)seg; }

__device__ __forceinline__ Place place(int set, int chunk) {
    const long long from = base(set) + chunk / cps * (long long)(seg_step);
    const int piece = chunk % cps;
    if constexpr (ALIGNED) return {from + piece * VEC, 0, VEC};
    const long long first = (from / VEC + piece) * VEC, end = from + seg;
    return {first, int(max(from - first, 0ll)), int(min(max(end - first, 0ll), (long long)VEC))};
}

__device__ __forceinline__ void fetch(uint4* to, const x_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ void fetch_chunk(uint4* to, const x_t* from, const Place& where) {
    if constexpr (ALIGNED) fetch(to, from + where.first);
    else {  // nothing behind the end of a tensor is read
        const int values = where.begin < where.end ? int(min((long long)VEC, elements - where.first)) : 0;
        if (values == VEC) fetch(to, from + where.first);
        else {  // one by one: a tool that watches memory takes any cp.async for a read of all its bytes
            Pack rest;
#pragma unroll
            for (int j = 0; j < VEC; ++j) rest.at[j] = j < values ? from[where.first + j] : x_t(0.0f);
            *to = rest.raw;
        }
    }
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// Two sums over the block, in every thread; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ void sum_of_block(double& a, double& b, int turn) {
    a = sum_of_warp(a), b = sum_of_warp(b);
    if constexpr (WARPS > 1) {
        __shared__ double2 sums[2][WARPS];
        if (threadIdx.x % 32 == 0) sums[turn][threadIdx.x / 32] = make_double2(a, b);
        __syncthreads();
        a = 0.0, b = 0.0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) a += sums[turn][warp].x, b += sums[turn][warp].y;
    }
}

// The sums of all blocks of a set, in every thread.
__device__ __forceinline__ void sum_of_parts(double* met, int* arrived, int part, double& a, double& b, int turn) {
    __shared__ double2 joint[2];
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            met[2 * part] = a, met[2 * part + 1] = b;
            __threadfence();
            atomicAdd(arrived, 1);
            while (atomicAdd(arrived, 0) < parts) {}
            __threadfence();
        }
        __syncwarp();
        const volatile double* of = met;
        a = 0.0, b = 0.0;
        for (int p = threadIdx.x; p < parts; p += 32) a += of[2 * p], b += of[2 * p + 1];
        a = sum_of_warp(a), b = sum_of_warp(b);
        if (threadIdx.x == 0) joint[turn] = make_double2(a, b);
    }
    __syncthreads();
    a = joint[turn].x, b = joint[turn].y;
}

__device__ __forceinline__ void put_pair(float*, float, float) {}
__device__ __forceinline__ void put_pair(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put_pair(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ void put(x_t* to, float a, float b) {
    if constexpr (sizeof(x_t) == 4) to[0] = x_t(a), to[1] = x_t(b);
    else put_pair(to, a, b);
}

extern "C" __global__ void __launch_bounds__(threads, per_sm)
grad_of_sets(const x_t* __restrict__ grad_out, const x_t* __restrict__ x,
             const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ weight,
             x_t* __restrict__ grad_x, float* __restrict__ along_sums, float* __restrict__ plain_sums, double* met, int* arrived) {
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, total - first), 0);
    int set = blockIdx.x / parts;
    const auto request = [&](int of, int slot) {
        const Place where = place(of, first + slot);
        fetch_chunk(held + slot, grad_out, where), fetch_chunk(held + share + slot, x, where);
    };
#pragma unroll 4
    for (int slot = threadIdx.x; slot < own; slot += threads) request(set, slot);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int turn = 0; set < count; set += teams, turn ^= 1) {
        const float centre = mean[set], scale = rstd[set], gain = weight[set % channels];
        asm volatile("cp.async.wait_all;" ::: "memory");
        double plain = 0.0, along = 0.0;  // what is far from zero all but cancels
#pragma unroll UNROLL
        for (int slot = threadIdx.x; slot < own; slot += threads) {
            Pack grad, some;
            grad.raw = held[slot], some.raw = held[share + slot];
            const Place where = place(set, first + slot);
            float few = 0.0f, others = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                if (!ALIGNED && (j < where.begin || j >= where.end)) continue;
                const float one = float(grad.at[j]);
                few += one;
                others = fmaf(one, float(some.at[j]) - centre, others);
            }
            plain += few, along += others;
        }
        sum_of_block(plain, along, turn);
        if constexpr (parts > 1) {
            sum_of_parts(met + (long long)set * parts * 2, arrived + set, part, plain, along, turn);
        }
        along *= scale;
        if (part == 0 && threadIdx.x == 0) along_sums[set] = float(along), plain_sums[set] = float(plain);
        const float shared = float(plain / per), slope = scale * float(along / per), factor = scale * gain;
        const int next = set + teams;
#pragma unroll UNROLL
        for (int slot = threadIdx.x; slot < own; slot += threads) {
            Pack grad, some;
            grad.raw = held[slot], some.raw = held[share + slot];
            const Place where = place(set, first + slot);
            float result[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) result[j] = factor * (float(grad.at[j]) - shared - (float(some.at[j]) - centre) * slope);
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
            if (ALIGNED || (where.begin == 0 && where.end == VEC)) __stcs(reinterpret_cast<uint4*>(grad_x + where.first), some.raw);
            else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    if (j >= where.begin && j < where.end) grad_x[where.first + j] = some.at[j];
                }
            }
            if (next < count) request(next, slot);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
}

extern "C" __global__ void __launch_bounds__(32)
sum_images(const float* __restrict__ plain_sums, const float* __restrict__ along_sums, float* __restrict__ grad_weight,
           float* __restrict__ grad_bias, int batch) {
    double plain = 0.0, along = 0.0;
    for (long long image = threadIdx.x; image < batch; image += 32) {
        plain += plain_sums[image * channels + blockIdx.x];
        along += along_sums[image * channels + blockIdx.x];
    }
    plain = sum_of_warp(plain), along = sum_of_warp(along);
    if (threadIdx.x == 0) grad_weight[blockIdx.x] = float(along), grad_bias[blockIdx.x] = float(plain);
}
