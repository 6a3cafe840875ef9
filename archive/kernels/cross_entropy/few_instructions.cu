/*---
op = "cross_entropy"
note = "2-byte types alone, for whose instructions the loads had to wait: the maximum of all that a thread has loaded is taken two logits at a time, and an exponential is a subtraction, a multiplication and one ex2.approx.ftz"
dtypes = ["bfloat16", "float16"]

[knobs]
THREADS = [256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[workspace]
losses = { shape = ["rows"], dtype = "float32" }

[[launch]]
entry = "cross_entropy_row"
grid = ["rows"]
block = ["THREADS"]
args = ["logits", "targets", "lse", "losses", "vocab", "ignore_index", "label_smoothing"]

[[launch]]
entry = "cross_entropy_mean"
grid = [1]
block = [1024]
args = ["losses", "targets", "loss", "rows", "ignore_index"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN
constexpr float PER_BIT = 1.44269504f;  // 2 to the power of this times x is the exponential of x
constexpr int VEC = 8, PAIRS = VEC / 2;

template <class T> struct PairOf;
template <> struct PairOf<__nv_bfloat16> { using type = __nv_bfloat162; };
template <> struct PairOf<__half> { using type = __half2; };
using Pair = PairOf<logits_t>::type;
struct alignas(16) Vec { unsigned at[PAIRS]; };

__device__ __forceinline__ Pair pair_of(const Vec& v, int e) { return *reinterpret_cast<const Pair*>(&v.at[e]); }

__device__ __forceinline__ float power_of_two(float x) {
    float power;  // no more than this one instruction: what is too small to be normal does not count in a sum from 1 on
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// The highest logit so far, the sum of exponentials relative to it, and the plain sum.
struct Seen { float most, sum, total; };

__device__ __forceinline__ void raise_to(Seen& seen, float higher) {
    if (higher > seen.most) seen.sum *= power_of_two((seen.most - higher) * PER_BIT), seen.most = higher;
}

template <bool smoothed> __device__ __forceinline__ void add(Seen& seen, float& sum, float value) {
    sum += power_of_two((value - seen.most) * PER_BIT);
    if constexpr (smoothed) seen.total += value;
}

template <bool smoothed, int COUNT> __device__ __forceinline__ void take(Seen& seen, const Vec (&v)[COUNT]) {
    Pair higher = pair_of(v[0], 0);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
#pragma unroll
        for (int e = 0; e < PAIRS; ++e) higher = __hmax2(higher, pair_of(v[i], e));
    }
    raise_to(seen, fmaxf(float(higher.x), float(higher.y)));
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        float even = 0.0f, odd = 0.0f;  // so that additions need not wait for each other
#pragma unroll
        for (int e = 0; e < PAIRS; ++e) {
            const Pair pair = pair_of(v[i], e);
            add<smoothed>(seen, even, float(pair.x));
            add<smoothed>(seen, odd, float(pair.y));
        }
        seen.sum += even + odd;
    }
}

template <bool smoothed> __device__ __forceinline__ void take_one(Seen& seen, logits_t logit) {
    const float value = float(logit);
    raise_to(seen, value);
    add<smoothed>(seen, seen.sum, value);
}

template <bool smoothed> __device__ __forceinline__ Seen seen_in(const logits_t* row, int vocab, int head) {
    Seen seen{LOWEST, 0.0f, 0.0f};
    const int packs = (vocab - head) / VEC, tail = head + packs * VEC;
    const Vec* vectors = reinterpret_cast<const Vec*>(row + head);
    int at = threadIdx.x;
    for (; at + (UNROLL - 1) * THREADS < packs; at += UNROLL * THREADS) {
        Vec v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) v[i] = vectors[at + i * THREADS];
        take<smoothed>(seen, v);
    }
    for (; at < packs; at += THREADS) {
        const Vec v[1] = {vectors[at]};
        take<smoothed>(seen, v);
    }
    if (threadIdx.x < head) take_one<smoothed>(seen, row[threadIdx.x]);
    if (tail + threadIdx.x < vocab) take_one<smoothed>(seen, row[tail + threadIdx.x]);
    return seen;
}

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ __forceinline__ Seen of_warp(const Seen& own) {
    float most = own.most;
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    return {most, sum_of_warp(own.sum * power_of_two((own.most - most) * PER_BIT)), sum_of_warp(own.total)};
}

extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy_row(const logits_t* __restrict__ logits, const long long* __restrict__ targets, float* __restrict__ lse,
                  float* __restrict__ losses, int vocab, long long ignore_index, float label_smoothing) {
    __shared__ Seen of_warps[32];
    const long long first = (long long)blockIdx.x * vocab;
    const logits_t* row = logits + first;
    const int head = min(int((VEC - first % VEC) % VEC), vocab);  // before the first 16 bytes that are aligned
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Seen seen = label_smoothing == 0.0f ? seen_in<false>(row, vocab, head) : seen_in<true>(row, vocab, head);
    seen = of_warp(seen);
    if (lane == 0) of_warps[warp] = seen;
    __syncthreads();
    if (warp > 0) return;
    seen = of_warp(lane < THREADS / 32 ? of_warps[lane] : Seen{LOWEST, 0.0f, 0.0f});
    if (lane > 0) return;
    const long long target = targets[blockIdx.x];
    const float logarithm = logf(seen.sum);
    float loss = 0.0f;
    if (target != ignore_index) {  // from the maximum: from lse, the difference of two large numbers would be left
        loss = logarithm + (1.0f - label_smoothing) * (seen.most - float(row[target]));
        if (label_smoothing != 0.0f) loss += label_smoothing * (seen.most - seen.total / vocab);
    }
    lse[blockIdx.x] = seen.most + logarithm;
    losses[blockIdx.x] = loss;
}

extern "C" __global__ void __launch_bounds__(1024)
cross_entropy_mean(const float* __restrict__ losses, const long long* __restrict__ targets, float* __restrict__ loss,
                   int rows, long long ignore_index) {
    __shared__ float sums[32], counts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0.0f, count = 0.0f;
    for (int row = threadIdx.x; row < rows; row += 1024) {
        sum += losses[row];
        count += targets[row] != ignore_index ? 1.0f : 0.0f;
    }
    sum = sum_of_warp(sum), count = sum_of_warp(count);
    if (lane == 0) sums[warp] = sum, counts[warp] = count;
    __syncthreads();
    sum = sum_of_warp(sums[lane]), count = sum_of_warp(counts[lane]);
    if (threadIdx.x == 0) *loss = sum / count;
}
