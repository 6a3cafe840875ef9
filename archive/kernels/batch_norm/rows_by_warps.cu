/*---
op = "batch_norm"
note = "a warp per row of a channel's image, wherever the row begins: its whole 16-byte pieces go through slots in shared memory, filled by cp.async and refilled as soon as they are written out, without masks or divisions; the few values before the first and behind the last piece are of one lane each; the statistics of a thread round the mean of its own values, joined in double; a persistent block, or several that meet, per channel"
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
of_row = "area * itemsize(x) // 16 * 16"
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
entry = "batch_norm_rows"
grid = ["teams * parts * several"]
block = ["32 * warps"]
shared = "share * of_row"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "met", "arrived", "momentum", "eps"]
cooperative = true

[[launch]]
entry = "batch_norm_rows"
grid = ["teams * (1 - several)"]
block = ["32 * warps"]
shared = "share * of_row"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "met", "arrived", "momentum", "eps"]
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

__device__ __forceinline__ float finite(float value) { return fabsf(value) <= 3.402823466e+38f ? value : 0.0f; }

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

extern "C" __global__ void __launch_bounds__(32 * warps, per_sm)
batch_norm_rows(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
       const float* __restrict__ running_mean, const float* __restrict__ running_var, out_t* __restrict__ out,
       float* __restrict__ new_running_mean, float* __restrict__ new_running_var, float* __restrict__ mean,
       float* __restrict__ rstd, double* met, int* arrived, double momentum, float eps) {
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, batch - first), 0);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int set = blockIdx.x / parts;
    float extra[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int line = warp + r * warps;
        const Row row(set, first + line, line < own);
        for (int i = lane; i < row.pieces; i += 32) fetch(held + line * SLOTS + i, x + row.begin + i * VEC);
        extra[r] = row.extra >= 0 ? float(x[row.extra]) : 0.0f;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    float pivot = finite(float(x[(long long)set * area]));  // of a set far from zero, the sums keep their last digits
    for (int turn = 0; set < channels; set += teams, turn ^= 1) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        double sum = 0.0, squares = 0.0;
        {
            constexpr int MOST = ROWS * ((SLOTS + 31) / 32 * VEC + 1);
            int values = 0;
            float near = 0.0f, off = 0.0f, spread = 0.0f;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int line = warp + r * warps;
                const Row row(set, first + line, line < own);
#pragma unroll 4
                for (int i = lane; i < row.pieces; i += 32) {
                    Pack some;
                    some.raw = held[line * SLOTS + i];
                    float few = 0.0f;
#pragma unroll
                    for (int j = 0; j < VEC; ++j) few = fmaf(float(some.at[j]), 1.0f / MOST, few);  // great values do not overflow
                    near += few;
                    values += VEC;
                }
                if (row.extra >= 0) near = fmaf(extra[r], 1.0f / MOST, near), ++values;
            }
            near = values > 0 ? finite(near * (float(MOST) / values)) : 0.0f;  // about the mean of the thread's values
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int line = warp + r * warps;
                const Row row(set, first + line, line < own);
#pragma unroll 4
                for (int i = lane; i < row.pieces; i += 32) {
                    Pack some;
                    some.raw = held[line * SLOTS + i];
                    float few = 0.0f, others = 0.0f;
#pragma unroll
                    for (int j = 0; j < VEC; ++j) {
                        const float one = float(some.at[j]) - near;
                        few += one;
                        others = fmaf(one, one, others);
                    }
                    off += few, spread += others;
                }
                if (row.extra >= 0) off += extra[r] - near, spread = fmaf(extra[r] - near, extra[r] - near, spread);
            }
            if (values > 0) {  // the thread's sums, round its own mean at first and then round the pivot
                const double lies = double(off) / values, away = double(near) - double(pivot) + lies;
                sum = values * away;
                squares = double(spread) - values * lies * lies + values * away * away;
            }
        }
        sum_of_block(sum, squares, turn);
        if constexpr (parts > 1) {
            sum_of_parts(met + (long long)set * parts * 2, arrived + set, part, sum, squares, turn);
        }
        const double moved = sum / per, middle = double(pivot) + moved;
        const float rough = float(middle), lost = float(middle - rough);  // of a set far from zero, its last digits
        const float difference = float(squares / per - moved * moved), variance = difference < 0.0f ? 0.0f : difference;  // NaN stays
        const float scale = 1.0f / sqrtf(variance + eps);
        if (part == 0 && threadIdx.x == 0) {
            const double exact = squares / per - moved * moved, unbiased = (exact < 0.0 ? 0.0 : exact) * per / (per - 1);
            new_running_mean[set] = float((1.0 - momentum) * running_mean[set] + momentum * middle);
            new_running_var[set] = float((1.0 - momentum) * running_var[set] + momentum * unbiased);
            mean[set] = rough, rstd[set] = scale;
        }
        const float gain = scale * weight[set], start = fmaf(-lost, gain, bias[set]);
        const auto result_of = [&](float value) {
            const float result = fmaf(value - rough, gain, start);
            return result;
        };
        const int next = set + teams;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int line = warp + r * warps;
            const Row row(set, first + line, line < own), then(next, first + line, line < own && next < channels);
#pragma unroll 4
            for (int i = lane; i < max(row.pieces, then.pieces); i += 32) {
                if (i < row.pieces) {
                    Pack some;
                    some.raw = held[line * SLOTS + i];
                    float result[VEC];
#pragma unroll
                    for (int j = 0; j < VEC; ++j) result[j] = result_of(float(some.at[j]));
#pragma unroll
                    for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
                    __stcs(reinterpret_cast<uint4*>(out + row.begin + i * VEC), some.raw);
                }
                if (i < then.pieces) fetch(held + line * SLOTS + i, x + then.begin + i * VEC);
            }
            if (row.extra >= 0) out[row.extra] = out_t(result_of(extra[r]));
            if (then.extra >= 0) extra[r] = float(x[then.extra]);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (next < channels) pivot = finite(float(x[(long long)next * area]));
    }
}
