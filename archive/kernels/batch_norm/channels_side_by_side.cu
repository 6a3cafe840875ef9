/*---
op = "batch_norm"
note = "for small images: a block takes as many neighbouring channels as 16 bytes hold values, so that their rows are whole 16-byte pieces at any size of the image; a thread keeps one place of the row over all images and so sums each of its values' channels apart, round the mean of its own values, joined in double; cp.async fills private slots, refilled as soon as they are written out"
when = "height * width >= 16 // itemsize(x) and height * width <= 400 and channels % (16 // itemsize(x)) == 0"
specialize = ["area", "batch", "channels", "threads", "groups", "parts", "share", "per_sm", "teams", "count", "per"]
require = ["first_parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 512]
RESIDENT = [1024, 768, 1536]

[let]
area = "height * width"
per = "per_channel"
count = "channels * itemsize(x) // 16"
groups = "max(1, min(THREADS // area, batch))"
threads = "32 * ceil_div(groups * area, 32)"
first_parts = "min(batch, ceil_div(batch * area * 16, KILOBYTES * 1024))"
per_sm = "max(1, min(16, RESIDENT // threads, 226 * 1024 // (ceil_div(batch, first_parts) * area * 16 + threads * 32 + 2048)))"
rounds = "ceil_div(count, max(1, min(count, sms * per_sm // first_parts)))"
teams = "ceil_div(count, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, batch // (4 * groups)))"
share = "ceil_div(batch, parts)"
several = "min(1, parts - 1)"

[workspace]
met = { shape = ["count * several", "parts", 16], dtype = "float64" }
arrived = { shape = ["count * several"], dtype = "int32", zero = true }

[[launch]]
entry = "batch_norm_side_by_side"
grid = ["teams * parts * several"]
block = ["threads"]
shared = "share * area * 16"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "met", "arrived", "momentum", "eps"]
cooperative = true

[[launch]]
entry = "batch_norm_side_by_side"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * area * 16"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "met", "arrived", "momentum", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32, ROWS = (share + groups - 1) / groups;
extern __shared__ uint4 held[];  // each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    x_t at[VEC];
};

__device__ __forceinline__ void fetch(uint4* to, const x_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

// Where a piece of the channels of a set lies in an image.
__device__ __forceinline__ long long place(int set, int image, int piece) {
    return ((long long)image * channels + set * VEC) * area + piece * VEC;
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// Two sums of each channel over the block, from those that each thread has of its first and its second channel.
__device__ __forceinline__ void sums_by_channel(double2 (&sums)[VEC], const double2& first, const double2& second) {
    __shared__ double2 of_thread[threads][2];
    of_thread[threadIdx.x][0] = first, of_thread[threadIdx.x][1] = second;
    __syncthreads();
    for (int channel = threadIdx.x / 32; channel < VEC; channel += WARPS) {
        const int from = channel * area / VEC, pieces = ((channel + 1) * area - 1) / VEC - from + 1;
        double a = 0.0, b = 0.0;
        for (int entry = threadIdx.x % 32; entry < pieces * groups; entry += 32) {
            const int piece = from + entry % pieces;
            const double2 one = of_thread[entry / pieces * area + piece][piece * VEC / area == channel ? 0 : 1];
            a += one.x, b += one.y;
        }
        a = sum_of_warp(a), b = sum_of_warp(b);
        if (threadIdx.x % 32 == 0) sums[channel] = make_double2(a, b);
    }
    __syncthreads();
}

// The sums of all blocks of a set, in the first warp: lane by lane those of a channel.
__device__ __forceinline__ double2 sums_of_parts(const double2 (&sums)[VEC], double* met, int* arrived, int part) {
    const int lane = threadIdx.x;
    if constexpr (parts == 1) return lane < VEC ? sums[lane] : make_double2(0.0, 0.0);
    if (lane < VEC) met[part * 16 + 2 * lane] = sums[lane].x, met[part * 16 + 2 * lane + 1] = sums[lane].y;
    __threadfence();
    __syncwarp();
    if (lane == 0) {
        __threadfence();
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < parts) {}
        __threadfence();
    }
    __syncwarp();
    const volatile double* const of = met;
    double2 sum = make_double2(0.0, 0.0);
    if (lane < VEC) {
        for (int p = 0; p < parts; ++p) sum.x += of[p * 16 + 2 * lane], sum.y += of[p * 16 + 2 * lane + 1];
    }
    return sum;
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

__device__ __forceinline__ float finite(float value) { return fabsf(value) <= 3.402823466e+38f ? value : 0.0f; }

// What the results of a channel need: the mean, what they are multiplied by, and what is added.
struct Of {
    float rough, gain, start;
};

extern "C" __global__ void __launch_bounds__(threads, per_sm)
batch_norm_side_by_side(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
       const float* __restrict__ running_mean, const float* __restrict__ running_var, out_t* __restrict__ out,
       float* __restrict__ new_running_mean, float* __restrict__ new_running_var, float* __restrict__ mean,
       float* __restrict__ rstd, double* met, int* arrived, double momentum, float eps) {
    __shared__ double2 sums[VEC];
    __shared__ Of of_channel[VEC];
    const int part = blockIdx.x % parts, first = part * share, images = max(min(share, batch - first), 0);
    const int piece = threadIdx.x % area, group = threadIdx.x / area, end = group < groups ? images : 0;
    const int low = piece * VEC / area, high = min(low + 1, VEC - 1), split = (low + 1) * area - piece * VEC;
    int set = blockIdx.x / parts;
    for (int image = group; image < end; image += groups) fetch(held + image * area + piece, x + place(set, first + image, piece));
    asm volatile("cp.async.commit_group;" ::: "memory");
    const int count_of_own = end > group ? (end - group + groups - 1) / groups : 0;
    const auto pivot_of = [&](int of, int channel) { return finite(float(x[(long long)(of * VEC + channel) * area])); };
    const int own = threadIdx.x < VEC ? threadIdx.x : 0;
    float pivot = pivot_of(set, low), other_pivot = pivot_of(set, high), own_pivot = pivot_of(set, own);
    for (; set < count; set += teams) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        double2 sum = make_double2(0.0, 0.0), other_sum = make_double2(0.0, 0.0);
        {
            float near[VEC], off[VEC], spread[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) near[j] = off[j] = spread[j] = 0.0f;
#pragma unroll 4
            for (int image = group; image < end; image += groups) {
                Pack some;
                some.raw = held[image * area + piece];
#pragma unroll
                for (int j = 0; j < VEC; ++j) near[j] = fmaf(float(some.at[j]), 1.0f / ROWS, near[j]);  // no overflow
            }
#pragma unroll
            for (int j = 0; j < VEC; ++j) near[j] = count_of_own > 0 ? finite(near[j] * (float(ROWS) / count_of_own)) : 0.0f;
#pragma unroll 4
            for (int image = group; image < end; image += groups) {
                Pack some;
                some.raw = held[image * area + piece];
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    const float one = float(some.at[j]) - near[j];
                    off[j] += one;
                    spread[j] = fmaf(one, one, spread[j]);
                }
            }
            if (count_of_own > 0) {
#pragma unroll
                for (int j = 0; j < VEC; ++j) {  // round the means of the thread's own at first, then round the pivots
                    const double lies = double(off[j]) / count_of_own;
                    const double away = double(near[j]) - double(j < split ? pivot : other_pivot) + lies;
                    double2& to = j < split ? sum : other_sum;
                    to.x += count_of_own * away;
                    to.y += double(spread[j]) - count_of_own * lies * lies + count_of_own * away * away;
                }
            }
        }
        sums_by_channel(sums, sum, other_sum);
        if (threadIdx.x < 32) {
            const double2 all = sums_of_parts(sums, met + (long long)set * parts * 16, arrived + set, part);
            if (threadIdx.x < VEC) {
                const int channel = set * VEC + threadIdx.x;
                const double moved = all.x / per, middle = double(own_pivot) + moved;
                const float rough = float(middle), lost = float(middle - rough);  // of channels far from zero, the last digits
                const float difference = float(all.y / per - moved * moved);
                const float variance = difference < 0.0f ? 0.0f : difference;  // NaN stays
                const float scale = 1.0f / sqrtf(variance + eps);
                if (part == 0) {
                    const double exact = all.y / per - moved * moved, unbiased = (exact < 0.0 ? 0.0 : exact) * per / (per - 1);
                    new_running_mean[channel] = float((1.0 - momentum) * running_mean[channel] + momentum * middle);
                    new_running_var[channel] = float((1.0 - momentum) * running_var[channel] + momentum * unbiased);
                    mean[channel] = rough, rstd[channel] = scale;
                }
                const float gain = scale * weight[channel];
                of_channel[threadIdx.x] = {rough, gain, fmaf(-lost, gain, bias[channel])};
            }
        }
        __syncthreads();
        const Of one = of_channel[low], other = of_channel[high];
        const int next = set + teams;
#pragma unroll 4
        for (int image = group; image < end; image += groups) {
            Pack some;
            some.raw = held[image * area + piece];
            float result[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const Of its = j < split ? one : other;
                result[j] = fmaf(float(some.at[j]) - its.rough, its.gain, its.start);
            }
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
            __stcs(reinterpret_cast<uint4*>(out + place(set, first + image, piece)), some.raw);
            if (next < count) fetch(held + image * area + piece, x + place(next, first + image, piece));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (next < count) pivot = pivot_of(next, low), other_pivot = pivot_of(next, high), own_pivot = pivot_of(next, own);
    }
}
