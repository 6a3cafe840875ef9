/*---
op = "fp8_gemv"
note = "16 rows of the matrix a block, whose warps share out k: 16-byte loads of 8-bit weights, many of them in flight, become pairs of 16 bits by a few operations on whole words, and tensor cores (mma.sync) multiply them by up to 8 rows of x at once, exactly; short sums are added up in float32; a row with a NaN weight is found by three operations on four weights"
when = "k % 16 == 0"
dtypes = ["bfloat16", "float16"]
specialize = ["k"]

[knobs]
LOADS = [4, 2, 8]
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

// Of 16 values of x the even and odd ones of each four, as widened weights are.
__device__ __forceinline__ void arrange(uint2 (&to)[4], const x_t* __restrict__ from) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 eight = reinterpret_cast<const uint4*>(from)[j];
        to[2 * j] = make_uint2(__byte_perm(eight.x, eight.y, 0x5410), __byte_perm(eight.x, eight.y, 0x7632));
        to[2 * j + 1] = make_uint2(__byte_perm(eight.z, eight.w, 0x5410), __byte_perm(eight.z, eight.w, 0x7632));
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
    const weight_t* const upper = weight + (long long)min(first + g, n - 1) * k;  // beyond the last row the last again
    const weight_t* const lower = weight + (long long)min(first + g + 8, n - 1) * k;
    float sums[4] = {};
    unsigned upper_nan = 0, lower_nan = 0;
#pragma unroll 1
    for (int begin = warp * (STEP * LOADS) + q * 16; begin - q * 16 < k; begin += WARPS * STEP * LOADS) {
        uint4 low[LOADS], high[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * STEP;
            low[l] = at < k ? *reinterpret_cast<const uint4*>(upper + at) : make_uint4(0, 0, 0, 0);
            high[l] = at < k ? *reinterpret_cast<const uint4*>(lower + at) : make_uint4(0, 0, 0, 0);
        }
        float some[4] = {};  // sums of sums are more exact
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * STEP;
            uint2 b[4] = {};
            if (has_x && at < k) arrange(b, of_x + at);
            upper_nan |= nan_bits(low[l]), lower_nan |= nan_bits(high[l]);
            mma(x_t{}, some, widen(x_t{}, low[l].x), widen(x_t{}, high[l].x), b[0]);
            mma(x_t{}, some, widen(x_t{}, low[l].y), widen(x_t{}, high[l].y), b[1]);
            mma(x_t{}, some, widen(x_t{}, low[l].z), widen(x_t{}, high[l].z), b[2]);
            mma(x_t{}, some, widen(x_t{}, low[l].w), widen(x_t{}, high[l].w), b[3]);
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
