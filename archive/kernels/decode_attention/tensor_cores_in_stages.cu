/*---
op = "decode_attention"
note = "the keys of a sequence in parts, a block for each part and up to 8 query heads that share its keys; each lane copies the 16-byte pieces that it will multiply itself into its own places in shared memory, some steps of 16 keys ahead and without a barrier, because loads into registers are delayed by the compiler until just before their use; tensor cores (mma.sync) multiply the keys by the heads as they lie, and the values by probabilities in two parts of 16 bits; a running maximum; a second launch weighs the parts, 32 columns a block"
when = "dim % 64 == 0 and dim <= 128"
dtypes = ["bfloat16", "float16"]
specialize = ["heads", "kv_heads", "keys", "dim", "group", "turns", "parts"]
require = ["WARPS * STAGES * dim * 64 <= 220 * 1024"]

[knobs]
PART = [512, 256, 1024, 2048]
WARPS = [4, 2, 8]
STAGES = [3, 2, 4]

[let]
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
shared = "WARPS * STAGES * dim * 64"
args = ["q", "k", "v", "lengths", "sums", "mosts", "totals"]

[[launch]]
entry = "weigh_parts"
grid = ["batch * heads * (dim // 32)"]
block = [256]
args = ["lengths", "sums", "mosts", "totals", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int STEP = 16;                     // keys of a warp at a time
constexpr int ALL = heads / kv_heads;        // query heads of a key
constexpr int OF_END = 8;                     // warps of the second launch
constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN
constexpr float HIGH = 256.0f;               // of all probabilities, so that the smallest have their digits in float16

__device__ __forceinline__ void mma(__nv_bfloat16, float (&d)[4], unsigned a, unsigned b, unsigned c, unsigned e,
                                    unsigned x, unsigned y) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a), "r"(b), "r"(c), "r"(e), "r"(x), "r"(y));
}
__device__ __forceinline__ void mma(__half, float (&d)[4], unsigned a, unsigned b, unsigned c, unsigned e,
                                    unsigned x, unsigned y) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a), "r"(b), "r"(c), "r"(e), "r"(x), "r"(y));
}

// 16 bytes to shared memory, or zeros.
__device__ __forceinline__ void copy(void* to, const k_t* from, bool inside) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

struct alignas(4) Pair { k_t at[2]; };
__device__ __forceinline__ unsigned bits(const Pair& pair) { return *reinterpret_cast<const unsigned*>(&pair); }

// The largest over lanes that differ in their key, for each of two heads.
__device__ __forceinline__ float most_of(float value) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}
__device__ __forceinline__ float sum_of(float value) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

// A probability in two parts, neither of which is zero unless it is: either may meet an infinite value.
constexpr float LEAST = 5.9604645e-8f;  // of float16
__device__ __forceinline__ k_t leading_of(float p) {
    return k_t(p > 0.0f ? fmaxf(p * (1.0f - 1.0f / 256.0f), LEAST) : p);
}
__device__ __forceinline__ k_t rest_of(float p, k_t leading) {
    return k_t(p > 0.0f ? fmaxf(p - float(leading), LEAST) : 0.0f);
}

// Keys by heads become heads by keys: of the words of two neighbouring keys, a lane takes the half of its own head.
__device__ __forceinline__ unsigned turned(unsigned word, int lane) {
    const int g = lane / 4, from = lane % 4 * 8 + g / 2;
    const unsigned even = __shfl_sync(0xffffffffu, word, from), odd = __shfl_sync(0xffffffffu, word, from + 4);
    return __byte_perm(even, odd, g % 2 ? 0x7632 : 0x5410);
}

constexpr int OF_KEYS = dim / 16, PIECES = 2 * OF_KEYS;  // pieces of a lane in a step
extern __shared__ uint4 memory[];

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attend_part(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v,
            const int* __restrict__ lengths, float* __restrict__ sums, float* __restrict__ mosts,
            float* __restrict__ totals) {
    __shared__ float of_most[WARPS][8], of_total[WARPS][8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = blockIdx.x % parts, g = lane / 4, own = lane % 4;
    const int turn = blockIdx.x / parts % turns;
    const long long kv_head = blockIdx.x / parts / turns, batch = kv_head / kv_heads;
    const int first = part * PART, count = min(PART, lengths[batch] - first);
    if (count <= 0) return;  // the whole block
    const long long head = batch * heads + kv_head % kv_heads * ALL + turn * group;
    const int own_heads = min(group, ALL - turn * group);
    k += (kv_head * keys + first) * dim + own * 8, v += (kv_head * keys + first) * dim + g * 8;
    const float scale = 1.0f / sqrtf(float(dim));
    uint4 query[dim / 32];
#pragma unroll
    for (int j = 0; j < dim / 32; ++j) {
        query[j] = make_uint4(0, 0, 0, 0);
        if (g < own_heads) query[j] = *reinterpret_cast<const uint4*>(q + (head + g) * dim + own * 8 + j * 32);
    }
    float sum[dim / 16][4] = {}, most[2] = {LOWEST, LOWEST}, total[2] = {};
    uint4* const places = memory + warp * (STAGES * PIECES * 32) + lane;
    const auto fetch = [&](int begin, int stage) {
        uint4* const to = places + stage * (PIECES * 32);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int key = begin + g + i * 8;
            const k_t* const from = k + (long long)(key < count ? key : 0) * dim;
#pragma unroll
            for (int j = 0; j < dim / 32; ++j) copy(to + (j * 2 + i) * 32, from + j * 32, key < count);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = begin + own * 2 + i / 2 * 8 + i % 2;
            const v_t* const from = v + (long long)(key < count ? key : 0) * dim;
#pragma unroll
            for (int j = 0; j < dim / 64; ++j) copy(to + (OF_KEYS + j * 4 + i) * 32, from + j * 64, key < count);
        }
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (warp * STEP + stage * WARPS * STEP < count) fetch(warp * STEP + stage * WARPS * STEP, stage);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    int now = 0, free = STAGES - 1;  // stages: the one that is used, and the one that was
#pragma unroll 1
    for (int begin = warp * STEP; begin < count; begin += WARPS * STEP) {
        const int next = begin + (STAGES - 1) * WARPS * STEP;
        if (next < count) fetch(next, free);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        const uint4* const from = places + now * (PIECES * 32);
        free = now, now = now + 1 == STAGES ? 0 : now + 1;
        uint4 low[dim / 32], high[dim / 32], value[dim / 64][4];
#pragma unroll
        for (int j = 0; j < dim / 32; ++j) low[j] = from[j * 64], high[j] = from[j * 64 + 32];
#pragma unroll
        for (int j = 0; j < dim / 64; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) value[j][i] = from[(OF_KEYS + j * 4 + i) * 32];
        }
        float score[4] = {};  // of keys g and g + 8, two heads each
#pragma unroll
        for (int j = 0; j < dim / 32; ++j) {
            mma(k_t{}, score, low[j].x, high[j].x, low[j].y, high[j].y, query[j].x, query[j].y);
            mma(k_t{}, score, low[j].z, high[j].z, low[j].w, high[j].w, query[j].z, query[j].w);
        }
        float share[2];
#pragma unroll
        for (int i = 0; i < 4; ++i) score[i] = begin + g + i / 2 * 8 < count ? score[i] * scale : -INFINITY;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float before = most[h];
            most[h] = fmaxf(before, most_of(fmaxf(score[h], score[h + 2])));
            share[h] = __expf(before - most[h]);
            score[h] = HIGH * __expf(score[h] - most[h]), score[h + 2] = HIGH * __expf(score[h + 2] - most[h]);
            total[h] = total[h] * share[h] + (score[h] + score[h + 2]);
        }
        unsigned leading[2], rest[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const Pair digits{leading_of(score[2 * i]), leading_of(score[2 * i + 1])};
            leading[i] = turned(bits(digits), lane);
            const Pair others{rest_of(score[2 * i], digits.at[0]), rest_of(score[2 * i + 1], digits.at[1])};
            rest[i] = turned(bits(others), lane);
        }
#pragma unroll
        for (int j = 0; j < dim / 64; ++j) {
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                float(&to)[4] = sum[j * 4 + t];
                unsigned word[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    word[i] = t == 0 ? value[j][i].x : t == 1 ? value[j][i].y : t == 2 ? value[j][i].z : value[j][i].w;
                    to[i] *= share[i % 2];
                }
                const unsigned a = __byte_perm(word[0], word[1], 0x5410), b = __byte_perm(word[0], word[1], 0x7632);
                const unsigned c = __byte_perm(word[2], word[3], 0x5410), e = __byte_perm(word[2], word[3], 0x7632);
                mma(k_t{}, to, a, b, c, e, leading[0], leading[1]);
                mma(k_t{}, to, a, b, c, e, rest[0], rest[1]);
            }
        }
    }
    // The sums of a warp's heads lie where its pieces were, of which none is on its way or still to be read.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    constexpr int ROW = dim + 1, OF_WARP = STAGES * PIECES * 32 * 4;  // in floats
    float* const met = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        total[h] = sum_of(total[h]);
        if (g == 0) of_most[warp][own * 2 + h] = most[h], of_total[warp][own * 2 + h] = total[h];
#pragma unroll
        for (int t = 0; t < dim / 16; ++t) {
            const int d = t / 4 * 64 + g * 8 + t % 4 * 2;
            float* const to = met + warp * OF_WARP + (own * 2 + h) * ROW + d;
            to[0] = sum[t][h], to[1] = sum[t][h + 2];
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < own_heads * dim; at += 32 * WARPS) {
        const int h = at / dim, d = at % dim;
        float top = LOWEST, all = 0.0f, bottom = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, of_most[w][h]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float weight = __expf(of_most[w][h] - top);
            all = fmaf(weight, met[w * OF_WARP + h * ROW + d], all), bottom = fmaf(weight, of_total[w][h], bottom);
        }
        sums[((head + h) * parts + part) * dim + d] = all;
        if (d == 0) mosts[(head + h) * parts + part] = top, totals[(head + h) * parts + part] = bottom;
    }
}

extern "C" __global__ void __launch_bounds__(32 * OF_END)
weigh_parts(const int* __restrict__ lengths, const float* __restrict__ sums, const float* __restrict__ mosts,
            const float* __restrict__ totals, out_t* __restrict__ out) {
    __shared__ float met[OF_END][32], bottoms[OF_END];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = blockIdx.x % (dim / 32) * 32 + lane;
    const long long head = blockIdx.x / (dim / 32);
    const int used = (lengths[head / heads] + PART - 1) / PART;
    float most = LOWEST;
    for (int part = lane; part < used; part += 32) most = fmaxf(most, mosts[head * parts + part]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    float top = 0.0f, bottom = 0.0f;
#pragma unroll 8
    for (int part = warp; part < used; part += OF_END) {
        const float share = expf(mosts[head * parts + part] - most);
        bottom = fmaf(share, totals[head * parts + part], bottom);
        top = fmaf(share, sums[(head * parts + part) * dim + d], top);
    }
    met[warp][lane] = top;
    if (lane == 0) bottoms[warp] = bottom;
    __syncthreads();
    if (warp > 0) return;
    top = bottom = 0.0f;
#pragma unroll
    for (int w = 0; w < OF_END; ++w) top += met[w][lane], bottom += bottoms[w];
    out[head * dim + d] = out_t(top / bottom);
}
