/*---
op = "decode_attention"
note = "the keys of a sequence in parts, a block for each part and all query heads that share its keys: every key and value is read once, 16 bytes a lane; scores of several keys and heads are reduced together, each lane keeping some; softmax in shared memory; a second launch weighs the parts"
when = "dim * itemsize(k) <= 512"
specialize = ["heads", "kv_heads", "keys", "dim", "vec", "lanes", "group", "turns", "parts"]
require = ["dim * WARPS * group * 4 + PART * group * 4 <= 40960"]

[knobs]
PART = [256, 128, 512]
WARPS = [8, 4]
LOADS = [4, 2]

[let]
full = "16 // itemsize(k)"
vec = "min(full, 1 + (1 - min(1, dim % 2)) + 2 * (1 - min(1, dim % 4)) + 4 * (1 - min(1, dim % 8)))"
need = "dim // vec"
lanes = "1 + min(1, need - 1) + 2 * min(1, (need - 1) // 2) + 4 * min(1, (need - 1) // 4) + 8 * min(1, (need - 1) // 8) + 16 * min(1, (need - 1) // 16)"
all = "heads // kv_heads"
group = "min(all, 8)"
turns = "ceil_div(all, group)"
parts = "ceil_div(keys, PART)"

[workspace]
sums = { shape = ["batch", "heads", "parts", "dim"], dtype = "float32" }
mosts = { shape = ["batch", "heads", "parts"], dtype = "float32" }
totals = { shape = ["batch", "heads", "parts"], dtype = "float32" }

[[launch]]
entry = "attend_part"
grid = ["batch * kv_heads * turns * parts"]
block = ["32 * WARPS"]
args = ["q", "k", "v", "lengths", "sums", "mosts", "totals"]

[[launch]]
entry = "weigh_parts"
grid = ["batch * heads"]
block = ["32 * WARPS"]
args = ["lengths", "sums", "mosts", "totals", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int AT_ONCE = 32 / lanes;          // keys of a warp's load
constexpr int STEP = AT_ONCE * LOADS;        // keys of a warp at a time
constexpr int ALL = heads / kv_heads;        // query heads of a key
constexpr int EACH = (dim + 31) / 32;
constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

// Adds up each of N values over lanes that differ in bits below FROM; while N is even a lane goes on with half of them.
template <int N, int FROM> __device__ __forceinline__ void reduce(float* values, int lane, int& first, bool& own) {
    if constexpr (FROM >= 1) {
        if constexpr (N % 2 == 0) {
            const bool upper = lane & FROM;
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                const float sent = upper ? values[i] : values[i + N / 2], kept = upper ? values[i + N / 2] : values[i];
                values[i] = kept + __shfl_xor_sync(0xffffffffu, sent, FROM);
            }
            first += upper ? N / 2 : 0;
            reduce<N / 2, FROM / 2>(values, lane, first, own);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) values[i] += __shfl_xor_sync(0xffffffffu, values[i], FROM);
            own = own && !(lane & FROM);
            reduce<N, FROM / 2>(values, lane, first, own);
        }
    }
}
// How many values a lane has left.
constexpr int left(int count, int from) { return from < 1 ? count : left(count % 2 ? count : count / 2, from / 2); }

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attend_part(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v,
            const int* __restrict__ lengths, float* __restrict__ sums, float* __restrict__ mosts,
            float* __restrict__ totals) {
    __shared__ float scores[PART][group], met[WARPS][group][dim];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = blockIdx.x % parts;
    const int turn = blockIdx.x / parts % turns;
    const long long kv_head = blockIdx.x / parts / turns, batch = kv_head / kv_heads;
    const int first = part * PART, count = min(PART, lengths[batch] - first);
    if (count <= 0) return;  // the whole block
    const long long head = batch * heads + kv_head % kv_heads * ALL + turn * group;
    const int own_heads = min(group, ALL - turn * group), col = lane % lanes * vec;
    k += (kv_head * keys + first) * dim, v += (kv_head * keys + first) * dim;
    const float scale = 1.0f / sqrtf(float(dim));
    float query[group][vec];
#pragma unroll
    for (int g = 0; g < group; ++g) {
        Pack<q_t> held{};
        if (g < own_heads && col < dim) held = *reinterpret_cast<const Pack<q_t>*>(q + (head + g) * dim + col);
#pragma unroll
        for (int e = 0; e < vec; ++e) query[g][e] = float(held.at[e]);
    }
    for (int begin = warp * STEP; begin < count; begin += WARPS * STEP) {
        Pack<k_t> held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int key = begin + l * AT_ONCE + lane / lanes;
            if (key < count && col < dim) held[l] = *reinterpret_cast<const Pack<k_t>*>(k + (long long)key * dim + col);
            else held[l] = Pack<k_t>{};
        }
        float value[LOADS * group];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            float wide[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) wide[e] = float(held[l].at[e]);
#pragma unroll
            for (int g = 0; g < group; ++g) {
                float sum = 0.0f;
#pragma unroll
                for (int e = 0; e < vec; ++e) sum = fmaf(query[g][e], wide[e], sum);
                value[l * group + g] = sum;
            }
        }
        int start = 0;
        bool own = true;
        reduce<LOADS * group, lanes / 2>(value, lane, start, own);
#pragma unroll
        for (int i = 0; i < left(LOADS * group, lanes / 2); ++i) {
            const int at = start + i, key = begin + at / group * AT_ONCE + lane / lanes;
            if (own && key < count) scores[key][at % group] = value[i] * scale;
        }
    }
    __syncthreads();
    for (int g = warp; g < own_heads; g += WARPS) {
        float most = LOWEST, total = 0.0f;
        for (int key = lane; key < count; key += 32) most = fmaxf(most, scores[key][g]);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        for (int key = lane; key < count; key += 32) total += scores[key][g] = expf(scores[key][g] - most);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
        if (lane == 0) mosts[(head + g) * parts + part] = most, totals[(head + g) * parts + part] = total;
    }
    __syncthreads();
    float sum[group][vec] = {};
    for (int begin = warp * STEP; begin < count; begin += WARPS * STEP) {
        Pack<v_t> held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int key = begin + l * AT_ONCE + lane / lanes;
            if (key < count && col < dim) held[l] = *reinterpret_cast<const Pack<v_t>*>(v + (long long)key * dim + col);
            else held[l] = Pack<v_t>{};
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int key = begin + l * AT_ONCE + lane / lanes;
            if (key >= count) continue;
#pragma unroll
            for (int g = 0; g < group; ++g) {
                if (g >= own_heads) continue;
                const float p = scores[key][g];
#pragma unroll
                for (int e = 0; e < vec; ++e) sum[g][e] = fmaf(p, float(held[l].at[e]), sum[g][e]);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < group; ++g) {
#pragma unroll
        for (int e = 0; e < vec; ++e) {
#pragma unroll
            for (int step = 16; step >= lanes; step /= 2) sum[g][e] += __shfl_xor_sync(0xffffffffu, sum[g][e], step);
            if (lane < lanes && col < dim) met[warp][g][col + e] = sum[g][e];
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < own_heads * dim; at += 32 * WARPS) {
        float all = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) all += met[w][at / dim][at % dim];
        sums[((head + at / dim) * parts + part) * dim + at % dim] = all;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
weigh_parts(const int* __restrict__ lengths, const float* __restrict__ sums, const float* __restrict__ mosts,
            const float* __restrict__ totals, out_t* __restrict__ out) {
    __shared__ float met[WARPS][dim], bottoms[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long head = blockIdx.x;
    const int used = (lengths[head / heads] + PART - 1) / PART;
    float most = LOWEST;
    for (int part = lane; part < used; part += 32) most = fmaxf(most, mosts[head * parts + part]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    float top[EACH] = {}, bottom = 0.0f;
#pragma unroll 4
    for (int part = warp; part < used; part += WARPS) {
        const float share = expf(mosts[head * parts + part] - most);
        bottom = fmaf(share, totals[head * parts + part], bottom);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int d = lane + 32 * i;
            if (d < dim) top[i] = fmaf(share, sums[(head * parts + part) * dim + d], top[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (lane + 32 * i < dim) met[warp][lane + 32 * i] = top[i];
    }
    if (lane == 0) bottoms[warp] = bottom;
    __syncthreads();
    bottom = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) bottom += bottoms[w];
    for (int d = threadIdx.x; d < dim; d += 32 * WARPS) {
        float all = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) all += met[w][d];
        out[head * dim + d] = out_t(all / bottom);
    }
}
