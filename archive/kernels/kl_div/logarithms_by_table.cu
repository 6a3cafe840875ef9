/*---
op = "kl_div"
note = "bfloat16 has 128 mantissas: their logarithms lie in shared memory, once for each lane so that no two meet at a bank, and the exponent is added; 16-byte loads as in the parent"
dtypes = ["bfloat16"]

[knobs]
THREADS = [256, 128, 512]
BLOCKS = [1056, 528, 792, 1584, 2112]
UNROLL = [4, 1, 2]

[let]
blocks = "min(ceil_div(rows * cols, THREADS * UNROLL * 8), BLOCKS)"

[workspace]
partial = { shape = ["blocks"], dtype = "float32" }

[[launch]]
entry = "kl_div_partial"
grid = ["blocks"]
block = ["THREADS"]
args = ["log_probs", "target", "partial", "rows * cols"]

[[launch]]
entry = "kl_div_total"
grid = [1]
block = ["THREADS"]
args = ["partial", "loss", "blocks", "rows"]
---*/
#include <cuda_bf16.h>

constexpr int MANTISSAS = 128, FROM_HERE_HALVED = 53;  // above the root of 2 an exponent higher: so 1 has neighbours

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// The sum over a block, in every thread; once per kernel, for the shared memory is used but once.
__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float sums[32];
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    return sum_of_warp(threadIdx.x % 32 < THREADS / 32 ? sums[threadIdx.x % 32] : 0.0f);
}

// `wanted` and `said` are the bits of two numbers of 16 bits; `logarithms` is this lane's column of the table.
__device__ __forceinline__ float with_term(float sum, unsigned wanted, unsigned said, const float* logarithms) {
    const float probability = __uint_as_float(wanted << 16);
    // 2^23 + the exponent, as a float without a conversion; 127 and 2^23 are taken off again.
    const unsigned exponent = (wanted + (MANTISSAS - FROM_HERE_HALVED)) >> 7;
    const float power = __uint_as_float(0x4b000000u | exponent) - (8388608.0f + 127.0f);
    const float logarithm = fmaf(power, 0.693147181f, logarithms[(wanted % MANTISSAS) * 32]);
    // The table's logarithm of 0 is finite, so that only an infinity times 0 is NaN, as in the reference.
    const float more = fmaf(probability, logarithm - __uint_as_float(said << 16), sum);
    return probability >= 0.0f ? more : __uint_as_float(0x7fc00000u);  // NaN, also for a negative probability
}

__device__ __forceinline__ float with_pair(float sum, unsigned wanted, unsigned said, const float* logarithms) {
    sum = with_term(sum, wanted & 0xffffu, said & 0xffffu, logarithms);
    return with_term(sum, wanted >> 16, said >> 16, logarithms);
}

extern "C" __global__ void __launch_bounds__(THREADS)
kl_div_partial(const log_probs_t* __restrict__ log_probs, const target_t* __restrict__ target,
               float* __restrict__ partial, long long n) {
    __shared__ float table[MANTISSAS * 32];
    for (int at = threadIdx.x; at < MANTISSAS * 32; at += THREADS) {
        const int mantissa = at / 32;
        const float value = 1.0f + mantissa / 128.0f;
        table[at] = logf(mantissa >= FROM_HERE_HALVED ? value * 0.5f : value);
    }
    __syncthreads();
    const float* logarithms = table + threadIdx.x % 32;
    const uint4* said = reinterpret_cast<const uint4*>(log_probs);
    const uint4* wanted = reinterpret_cast<const uint4*>(target);
    const long long packs = n / 8;
    float sum = 0.0f;
    for (long long tile = (long long)blockIdx.x * THREADS * UNROLL; tile < packs;
         tile += (long long)gridDim.x * THREADS * UNROLL) {
        uint4 p[UNROLL], q[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const long long at = tile + i * THREADS + threadIdx.x;
            p[i] = at < packs ? wanted[at] : make_uint4(0, 0, 0, 0);
            q[i] = at < packs ? said[at] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            sum = with_pair(sum, p[i].x, q[i].x, logarithms);
            sum = with_pair(sum, p[i].y, q[i].y, logarithms);
            sum = with_pair(sum, p[i].z, q[i].z, logarithms);
            sum = with_pair(sum, p[i].w, q[i].w, logarithms);
        }
    }
    const long long rest = packs * 8 + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        const float probability = float(target[rest]), logarithm = probability == 0.0f ? 0.0f : logf(probability);
        sum = fmaf(probability, logarithm - float(log_probs[rest]), sum);
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
kl_div_total(const float* __restrict__ partial, float* __restrict__ loss, int blocks, int rows) {
    float sum = 0.0f;
    for (int at = threadIdx.x; at < blocks; at += THREADS) sum += partial[at];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) *loss = sum / rows;
}
