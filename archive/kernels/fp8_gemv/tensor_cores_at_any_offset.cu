/*---
op = "fp8_gemv"
note = "rows that begin anywhere; 16 rows of the matrix a block, whose warps share out k: of 8-bit weights come the two aligned 16 bytes that hold a lane's, which are shifted into place, and become pairs of 16 bits by a few operations on whole words, and tensor cores (mma.sync) multiply them by up to 8 rows of x at once, exactly; short sums are added up in float32; a row with a NaN weight is found by three operations on four weights"
when = "k < 1048576"
dtypes = ["bfloat16", "float16"]
specialize = ["k"]

[knobs]
LOADS = [2, 4]
WARPS = [8, 4, 16]

[[launch]]
entry = "multiply"
grid = ["ceil_div(n, 16)", "ceil_div(m, 8)"]
block = ["32 * WARPS"]
args = ["x", "weight", "scales", "out", "m", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int EACH = 8, STEP = 64;  // four lanes have 16 values of k each

__device__ __forceinline__ void mma(__nv_bfloat16, float (&d)[4], const uint2& low, const uint2& high, const uint2& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void mma(__half, float (&d)[4], const uint2& low, const uint2& high, const uint2& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b.x), "r"(b.y));
}

// What widened weights lack.
__device__ __forceinline__ float missing(__half) { return 256.0f; }
__device__ __forceinline__ float missing(__nv_bfloat16) { return 1.0f; }

// Even and odd bytes of a word as halves: the bits are alike but for the bias of the exponent, so that values are 1/256.
__device__ __forceinline__ uint2 widen(__half, unsigned word) {
    const unsigned up = word << 8;
    return make_uint2((up & 0x80008000u) | (up >> 1 & 0x3f803f80u), (word & 0x80008000u) | (word >> 1 & 0x3f803f80u));
}
// As bfloat16 they are 2^-120 of their values.
__device__ __forceinline__ uint2 widen(__nv_bfloat16, unsigned word) {
    const unsigned even = (word << 8 & 0x80008000u) | (word << 4 & 0x07f007f0u);
    const unsigned odd = (word & 0x80008000u) | (word >> 4 & 0x07f007f0u);
    const unsigned power = (127u + 120u) << 7, powers = power << 16 | power;
    const auto times = [&](unsigned pair) {
        const __nv_bfloat162 result = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), *reinterpret_cast<const __nv_bfloat162*>(&powers));
        return *reinterpret_cast<const unsigned*>(&result);
    };
    return make_uint2(times(even), times(odd));
}

// 16 bytes from anywhere, as the two aligned 16 bytes that hold them; what lies beyond the matrix is zero.
struct Around { uint4 first, second; };

__device__ __forceinline__ Around fetch(const weight_t* __restrict__ weight, long long at, long long all) {
    Around found{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    const long long begin = at & ~15ll;
    if (begin + 32 <= all) {
        const uint4* const from = reinterpret_cast<const uint4*>(weight + begin);
        found.first = from[0], found.second = from[1];
    } else {  // at the end of the matrix
        for (int i = 0; i < 32 && begin + i < all; ++i) {
            const unsigned byte = static_cast<unsigned char>(weight[begin + i]), shifted = byte << i % 4 * 8;
            const int word = i / 4;
            (word == 0 ? found.first.x : word == 1 ? found.first.y : word == 2 ? found.first.z : word == 3 ? found.first.w
             : word == 4 ? found.second.x : word == 5 ? found.second.y : word == 6 ? found.second.z : found.second.w) |= shifted;
        }
    }
    return found;
}

__device__ __forceinline__ uint4 shifted(const Around& from, unsigned offset) {
    unsigned w[8] = {from.first.x, from.first.y, from.first.z, from.first.w, from.second.x, from.second.y, from.second.z, from.second.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = offset & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = offset & 4 ? w[i + 1] : w[i];
    const unsigned bytes = 0x3210u + 0x1111u * (offset & 3);
    return make_uint4(__byte_perm(w[0], w[1], bytes), __byte_perm(w[1], w[2], bytes), __byte_perm(w[2], w[3], bytes), __byte_perm(w[3], w[4], bytes));
}

// The top bit of each byte of the result is set if the byte of the word is NaN, whose seven low bits are ones.
__device__ __forceinline__ unsigned nan_bits(unsigned word) { return (word & 0x7f7f7f7fu) + 0x01010101u; }
__device__ __forceinline__ unsigned nan_bits(const uint4& words) {
    return nan_bits(words.x) | nan_bits(words.y) | nan_bits(words.z) | nan_bits(words.w);
}
// Whether one of a row's weights is NaN in this warp's share: four lanes hold the row.
__device__ __forceinline__ bool any_nan(unsigned bits) {
    bits |= __shfl_xor_sync(0xffffffffu, bits, 1);
    bits |= __shfl_xor_sync(0xffffffffu, bits, 2);
    return bits & 0x80808080u;
}

// The same for the first `count` bytes only: the others belong to the next row.
__device__ __forceinline__ unsigned nan_bits(const uint4& words, int count) {
    const unsigned word[4] = {words.x, words.y, words.z, words.w};
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int bytes = count - 4 * i;
        bits |= nan_bits(bytes >= 4 ? word[i] : bytes <= 0 ? 0u : word[i] & (1u << 8 * bytes) - 1);
    }
    return bits;
}

// Of 16 values of x the even and odd ones of each four, as widened weights are; beyond the row they are zero.
__device__ __forceinline__ void arrange(uint2 (&to)[4], const x_t* __restrict__ from, int count) {
    const unsigned short* const bits = reinterpret_cast<const unsigned short*>(from);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        unsigned four[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) four[e] = 4 * j + e < count ? bits[4 * j + e] : 0;
        to[j] = make_uint2(four[0] | four[2] << 16, four[1] | four[3] << 16);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
multiply(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const float* __restrict__ scales, out_t* __restrict__ out,
         int m, int n) {
    __shared__ float met[WARPS][16][9];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int first = blockIdx.x * 16, row = blockIdx.y * EACH;
    const bool has_x = row + g < m;
    const x_t* const of_x = x + (long long)(has_x ? row + g : 0) * k;
    const long long all = (long long)n * k;
    const long long upper = (long long)min(first + g, n - 1) * k, lower = (long long)min(first + g + 8, n - 1) * k;  // beyond the last row the last again
    const Around none{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    float sums[4] = {};
    unsigned upper_nan = 0, lower_nan = 0;
#pragma unroll 1
    for (int begin = warp * (STEP * LOADS) + q * 16; begin - q * 16 < k; begin += WARPS * STEP * LOADS) {
        Around around[LOADS][2];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * STEP;
            around[l][0] = at < k ? fetch(weight, upper + at, all) : none;
            around[l][1] = at < k ? fetch(weight, lower + at, all) : none;
        }
        float some[4] = {};  // sums of sums are more exact
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * STEP;
            uint2 b[4] = {};
            const uint4 low = shifted(around[l][0], unsigned(upper) % 16), high = shifted(around[l][1], unsigned(lower) % 16);
            if (has_x && at < k) arrange(b, of_x + at, k - at);
            upper_nan |= nan_bits(low, k - at), lower_nan |= nan_bits(high, k - at);
            mma(x_t{}, some, widen(x_t{}, low.x), widen(x_t{}, high.x), b[0]);
            mma(x_t{}, some, widen(x_t{}, low.y), widen(x_t{}, high.y), b[1]);
            mma(x_t{}, some, widen(x_t{}, low.z), widen(x_t{}, high.z), b[2]);
            mma(x_t{}, some, widen(x_t{}, low.w), widen(x_t{}, high.w), b[3]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += some[i];
    }
    if (any_nan(upper_nan)) sums[0] = sums[1] = NAN;
    if (any_nan(lower_nan)) sums[2] = sums[3] = NAN;
    met[warp][g][2 * q] = sums[0], met[warp][g][2 * q + 1] = sums[1];
    met[warp][g + 8][2 * q] = sums[2], met[warp][g + 8][2 * q + 1] = sums[3];
    __syncthreads();
    for (int at = threadIdx.x; at < 16 * EACH; at += 32 * WARPS) {
        const int i = at / 16, j = at % 16;
        if (row + i >= m || first + j >= n) continue;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += met[w][j][i];
        out[(long long)(row + i) * n + first + j] = out_t(sum * missing(x_t{}) * scales[first + j]);
    }
}
