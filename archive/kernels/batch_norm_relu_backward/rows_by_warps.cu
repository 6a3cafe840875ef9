/*---
op = "batch_norm_relu_backward"
note = "a warp per row of a channel's image, wherever the row begins: its whole 16-byte pieces go through slots in shared memory, filled by cp.async and refilled as soon as they are written out, without masks or divisions; the few values before the first and behind the last piece are of one lane each; the sums of a row in float, joined in double; the gradient behind the activation replaces the one before it in its slot; a persistent block, or several that meet, per channel"
when = "height * width * itemsize(x) >= 64 and height * width * itemsize(x) <= 65536 and (batch <= 96 or height * width * itemsize(x) >= 1024)"
specialize = ["area", "channels", "batch", "warps", "parts", "share", "per_sm", "teams", "per"]
require = ["first_parts <= sms * per_sm", "ceil_div(share, warps) <= 8"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
WARPS = [12, 4, 8, 16]
RESIDENT = [1152, 768, 1536]

[let]
area = "height * width"
per = "per_channel"
of_row = "area * itemsize(x) // 16 * 48"
whole = "min(1, max(0, batch * of_row - (KILOBYTES + 20) * 1024))"
first_parts = "min(batch, max(1, whole * ceil_div(batch * of_row, KILOBYTES * 1024)))"
most = "ceil_div(batch, first_parts)"
warps = "ceil_div(most, ceil_div(most, WARPS))"
per_sm = "max(1, min(32, RESIDENT // (32 * warps), 226 * 1024 // (most * of_row + 2048)))"
rounds = "ceil_div(channels, max(1, min(channels, sms * per_sm // first_parts)))"
teams = "ceil_div(channels, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, batch // warps))"
share = "ceil_div(batch, parts)"
several = "min(1, parts - 1)"

[workspace]
met = { shape = ["channels * several", "parts", 2], dtype = "float64" }
arrived = { shape = ["channels * several"], dtype = "int32", zero = true }

[[launch]]
entry = "grad_of_rows"
grid = ["teams * parts * several"]
block = ["32 * warps"]
shared = "share * of_row"
args = ["grad_out", "x", "out", "mean", "rstd", "weight", "grad_x", "grad_weight", "grad_bias", "met", "arrived"]
cooperative = true

[[launch]]
entry = "grad_of_rows"
grid = ["teams * (1 - several)"]
block = ["32 * warps"]
shared = "share * of_row"
args = ["grad_out", "x", "out", "mean", "rstd", "weight", "grad_x", "grad_weight", "grad_bias", "met", "arrived"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS_OF_BLOCK = warps, SLOTS = area / VEC, ROWS = (share + warps - 1) / warps;
extern __shared__ uint4 held[];  // each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    x_t at[VEC];
};

// A row of a channel: where its first piece lies, how many there are, and the value in none that is this lane's.
struct Row {
    long long begin, extra;  // no extra: -1
    int pieces;

    __device__ __forceinline__ Row(int channel, int image, bool inside) {
        const long long start = ((long long)image * channels + channel) * area;
        const int ahead = area % VEC == 0 ? 0 : int(-start & (VEC - 1)), head = ahead < area ? ahead : area;
        const int lane = threadIdx.x % 32, at = lane % VEC, tail = (area - head) % VEC;
        begin = start + head;
        pieces = inside ? (area - head) / VEC : 0;
        extra = -1;
        if (area % VEC == 0 || !inside) return;
        if (lane < VEC && at < head) extra = start + at;
        if (lane / VEC == 1 && at < tail) extra = start + area - tail + at;
    }
};

__device__ __forceinline__ void fetch(uint4* to, const x_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// Two sums over the block, in every thread; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ void sum_of_block(double& a, double& b, int turn) {
    a = sum_of_warp(a), b = sum_of_warp(b);
    if constexpr (WARPS_OF_BLOCK > 1) {
        __shared__ double2 sums[2][WARPS_OF_BLOCK];
        if (threadIdx.x % 32 == 0) sums[turn][threadIdx.x / 32] = make_double2(a, b);
        __syncthreads();
        a = 0.0, b = 0.0;
#pragma unroll
        for (int warp = 0; warp < WARPS_OF_BLOCK; ++warp) a += sums[turn][warp].x, b += sums[turn][warp].y;
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
            __threadfence();
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

// What the activation lets through of a gradient; of NaN all.
__device__ __forceinline__ float passed(float grad, float made) { return made <= 0.0f ? 0.0f : grad; }

extern "C" __global__ void __launch_bounds__(32 * warps, per_sm)
grad_of_rows(const x_t* __restrict__ grad_out, const x_t* __restrict__ x, const x_t* __restrict__ out,
       const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ weight, x_t* __restrict__ grad_x,
       float* __restrict__ grad_weight, float* __restrict__ grad_bias, double* met, int* arrived) {
    uint4* const values = held + share * SLOTS;
    uint4* const results = values + share * SLOTS;
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, batch - first), 0);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int set = blockIdx.x / parts;
    float extra[ROWS], extra_grad[ROWS];
    const auto request = [&](const Row& row, int line, int i) {
        fetch(held + line * SLOTS + i, grad_out + row.begin + i * VEC), fetch(values + line * SLOTS + i, x + row.begin + i * VEC);
        fetch(results + line * SLOTS + i, out + row.begin + i * VEC);
    };
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int line = warp + r * warps;
        const Row row(set, first + line, line < own);
        for (int i = lane; i < row.pieces; i += 32) request(row, line, i);
        extra[r] = row.extra >= 0 ? float(x[row.extra]) : 0.0f;
        extra_grad[r] = row.extra >= 0 ? passed(float(grad_out[row.extra]), float(out[row.extra])) : 0.0f;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int turn = 0; set < channels; set += teams, turn ^= 1) {
        const float centre = mean[set], scale = rstd[set], gain = weight[set];
        asm volatile("cp.async.wait_all;" ::: "memory");
        double plain = 0.0, along = 0.0;  // what is far from zero all but cancels
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int line = warp + r * warps;
            const Row row(set, first + line, line < own);
            float few = 0.0f, others = 0.0f;
#pragma unroll 4
            for (int i = lane; i < row.pieces; i += 32) {
                Pack grad, some;
                grad.raw = held[line * SLOTS + i], some.raw = values[line * SLOTS + i];
                Pack made;
                made.raw = results[line * SLOTS + i];
#pragma unroll
                for (int j = 0; j < VEC; ++j) grad.at[j] = float(made.at[j]) <= 0.0f ? x_t(0.0f) : grad.at[j];
                held[line * SLOTS + i] = grad.raw;
                float one_few = 0.0f, one_others = 0.0f;
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    const float one = float(grad.at[j]);
                    one_few += one;
                    one_others = fmaf(one, float(some.at[j]) - centre, one_others);
                }
                few += one_few, others += one_others;
            }
            if (row.extra >= 0) few += extra_grad[r], others = fmaf(extra_grad[r], extra[r] - centre, others);
            plain += few, along += others;
        }
        sum_of_block(plain, along, turn);
        if constexpr (parts > 1) {
            sum_of_parts(met + (long long)set * parts * 2, arrived + set, part, plain, along, turn);
        }
        along *= scale;
        if (part == 0 && threadIdx.x == 0) grad_weight[set] = float(along), grad_bias[set] = float(plain);
        const float shared = float(plain / per), slope = scale * float(along / per), factor = scale * gain;
        const int next = set + teams;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int line = warp + r * warps;
            const Row row(set, first + line, line < own), then(next, first + line, line < own && next < channels);
#pragma unroll 4
            for (int i = lane; i < max(row.pieces, then.pieces); i += 32) {
                if (i < row.pieces) {
                    Pack grad, some;
                    grad.raw = held[line * SLOTS + i], some.raw = values[line * SLOTS + i];
                    float result[VEC];
#pragma unroll
                    for (int j = 0; j < VEC; ++j) result[j] = factor * (float(grad.at[j]) - shared - (float(some.at[j]) - centre) * slope);
#pragma unroll
                    for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
                    __stcs(reinterpret_cast<uint4*>(grad_x + row.begin + i * VEC), some.raw);
                }
                if (i < then.pieces) request(then, line, i);
            }
            if (row.extra >= 0) grad_x[row.extra] = x_t(factor * (extra_grad[r] - shared - (extra[r] - centre) * slope));
            if (then.extra >= 0) extra[r] = float(x[then.extra]), extra_grad[r] = passed(float(grad_out[then.extra]), float(out[then.extra]));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
}
