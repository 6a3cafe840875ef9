/*---
op = "cross_entropy"
note = "one block per row, 16-byte loads with several on their way at once in each thread; a maximum per 16 bytes, so that sums are rescaled once in a while and not for every logit; hardware exponentials for 2-byte types; the plain sum only where it is asked for"

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
constexpr int VEC = 16 / sizeof(logits_t);
struct alignas(16) Vec { logits_t at[VEC]; };

__device__ __forceinline__ float exponential(float x) {
    if constexpr (sizeof(logits_t) == 2) return __expf(x);
    return expf(x);
}

// The highest logit so far, the sum of exponentials relative to it, and the plain sum.
struct Seen { float most, sum, total; };

template <bool smoothed> __device__ __forceinline__ void take(Seen& seen, const Vec& v) {
    float value[VEC], higher = seen.most;
#pragma unroll
    for (int e = 0; e < VEC; ++e) value[e] = float(v.at[e]), higher = fmaxf(higher, value[e]);
    if (higher > seen.most) seen.sum *= exponential(seen.most - higher), seen.most = higher;
    float sum = 0.0f;  // of its own, so that additions need not wait for those of the vector before
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
        sum += exponential(value[e] - higher);
        if constexpr (smoothed) seen.total += value[e];
    }
    seen.sum += sum;
}

template <bool smoothed> __device__ __forceinline__ void take_one(Seen& seen, logits_t logit) {
    const float value = float(logit), higher = fmaxf(seen.most, value);
    seen.sum = seen.sum * exponential(seen.most - higher) + exponential(value - higher);
    seen.most = higher;
    if constexpr (smoothed) seen.total += value;
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
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) take<smoothed>(seen, v[i]);
    }
    for (; at < packs; at += THREADS) take<smoothed>(seen, vectors[at]);
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
    return {most, sum_of_warp(own.sum * exponential(own.most - most)), sum_of_warp(own.total)};
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
