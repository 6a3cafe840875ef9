/*---
op = "batch_norm_relu_backward"
note = "for small images: a block takes as many neighbouring channels as 16 bytes hold values, so that their rows are whole 16-byte pieces at any size of the image; a thread keeps one place of the row over all images and so sums each of its values' channels apart, joined in double; cp.async fills private slots, refilled as soon as they are written out; the gradient behind the activation replaces the one before it in its slot"
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
first_parts = "min(batch, ceil_div(batch * area * 48, KILOBYTES * 1024))"
per_sm = "max(1, min(16, RESIDENT // threads, 226 * 1024 // (ceil_div(batch, first_parts) * area * 48 + threads * 32 + 2048)))"
rounds = "ceil_div(count, max(1, min(count, sms * per_sm // first_parts)))"
teams = "ceil_div(count, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, batch // (4 * groups)))"
share = "ceil_div(batch, parts)"
several = "min(1, parts - 1)"

[workspace]
met = { shape = ["count * several", "parts", 16], dtype = "float64" }
arrived = { shape = ["count * several"], dtype = "int32", zero = true }

[[launch]]
entry = "grad_side_by_side"
grid = ["teams * parts * several"]
block = ["threads"]
shared = "share * area * 48"
args = ["grad_out", "x", "out", "mean", "rstd", "weight", "grad_x", "grad_weight", "grad_bias", "met", "arrived"]
cooperative = true

[[launch]]
entry = "grad_side_by_side"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * area * 48"
args = ["grad_out", "x", "out", "mean", "rstd", "weight", "grad_x", "grad_weight", "grad_bias", "met", "arrived"]
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

// What the gradients of a channel need.
struct Of {
    float centre, shared, slope, factor;
};

extern "C" __global__ void __launch_bounds__(threads, per_sm)
grad_side_by_side(const x_t* __restrict__ grad_out, const x_t* __restrict__ x, const x_t* __restrict__ out,
       const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ weight, x_t* __restrict__ grad_x,
       float* __restrict__ grad_weight, float* __restrict__ grad_bias, double* met, int* arrived) {
    __shared__ double2 sums[VEC];
    __shared__ Of of_channel[VEC];
    uint4* const values = held + share * area;
    uint4* const results = values + share * area;
    const int part = blockIdx.x % parts, first = part * share, images = max(min(share, batch - first), 0);
    const int piece = threadIdx.x % area, group = threadIdx.x / area, end = group < groups ? images : 0;
    const int low = piece * VEC / area, high = min(low + 1, VEC - 1), split = (low + 1) * area - piece * VEC;
    int set = blockIdx.x / parts;
    const auto request = [&](int of, int image) {
        const long long from = place(of, first + image, piece);
        fetch(held + image * area + piece, grad_out + from), fetch(values + image * area + piece, x + from);
        fetch(results + image * area + piece, out + from);
    };
    for (int image = group; image < end; image += groups) request(set, image);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (; set < count; set += teams) {
        const float centre = mean[set * VEC + low], other_centre = mean[set * VEC + high];
        asm volatile("cp.async.wait_all;" ::: "memory");
        double2 sum = make_double2(0.0, 0.0), other_sum = make_double2(0.0, 0.0);
#pragma unroll 1
        for (int begin = group; begin < end; begin += 8 * groups) {  // what is far from zero all but cancels
            float plain[VEC] = {}, along[VEC] = {};
#pragma unroll 1
            for (int image = begin; image < min(end, begin + 8 * groups); image += groups) {
                Pack grad, some;
                grad.raw = held[image * area + piece], some.raw = results[image * area + piece];
#pragma unroll
                for (int j = 0; j < VEC; ++j) grad.at[j] = float(some.at[j]) <= 0.0f ? x_t(0.0f) : grad.at[j];
                held[image * area + piece] = grad.raw, some.raw = values[image * area + piece];
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    const float one = float(grad.at[j]);
                    plain[j] += one;
                    along[j] = fmaf(one, float(some.at[j]) - (j < split ? centre : other_centre), along[j]);
                }
            }
            float2 few = make_float2(0.0f, 0.0f), others = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                few.x += j < split ? plain[j] : 0.0f, few.y += j < split ? along[j] : 0.0f;
                others.x += j < split ? 0.0f : plain[j], others.y += j < split ? 0.0f : along[j];
            }
            sum.x += few.x, sum.y += few.y, other_sum.x += others.x, other_sum.y += others.y;
        }
        sums_by_channel(sums, sum, other_sum);
        if (threadIdx.x < 32) {
            const double2 all = sums_of_parts(sums, met + (long long)set * parts * 16, arrived + set, part);
            if (threadIdx.x < VEC) {
                const int channel = set * VEC + threadIdx.x;
                const float scale = rstd[channel];
                const double along = all.y * scale;
                if (part == 0) grad_weight[channel] = float(along), grad_bias[channel] = float(all.x);
                of_channel[threadIdx.x] = {mean[channel], float(all.x / per), scale * float(along / per), scale * weight[channel]};
            }
        }
        __syncthreads();
        const Of one = of_channel[low], other = of_channel[high];
        const int next = set + teams;
#pragma unroll 1
        for (int image = group; image < end; image += groups) {
            Pack grad, some;
            grad.raw = held[image * area + piece], some.raw = values[image * area + piece];
            float result[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const Of its = j < split ? one : other;
                result[j] = its.factor * (float(grad.at[j]) - its.shared - (float(some.at[j]) - its.centre) * its.slope);
            }
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
            __stcs(reinterpret_cast<uint4*>(grad_x + place(set, first + image, piece)), some.raw);
            if (next < count) request(next, image);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
}
