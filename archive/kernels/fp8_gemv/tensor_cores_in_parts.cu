/*---
op = "fp8_gemv"
note = "16 or 32 rows of the matrix a block, whose warps share out k: 16-byte loads of 8-bit weights, many of them in flight, become pairs of 16 bits by a few operations on whole words, and tensor cores (mma.sync) multiply them exactly: each row of float32 x is three in bfloat16, its leading, middle and last 8 digits, so that two rows are multiplied at once; short sums are added up in float32; a row with a NaN weight is found by three operations on four weights"
when = "k % 16 == 0"
dtypes = ["float32"]
specialize = ["k"]

[knobs]
LOADS = [2, 4]
WARPS = [8, 16]
TILES = [2, 1]

[[launch]]
entry = "multiply"
grid = ["ceil_div(n, 16 * TILES)", "ceil_div(m, 2)"]
block = ["32 * WARPS"]
args = ["x", "weight", "scales", "out", "m", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int PARTS = 3, EACH = 2, STEP = 64;  // four lanes have 16 values of k each

__device__ __forceinline__ void mma(float (&d)[4], const uint2& low, const uint2& high, const uint2& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b.x), "r"(b.y));
}
// Even and odd bytes of a word as bfloat16: the bits are alike but for the bias of the exponent, 2^-120.
__device__ __forceinline__ uint2 widen(unsigned word) {
    const unsigned even = (word << 8 & 0x80008000u) | (word << 4 & 0x07f007f0u);
    const unsigned odd = (word & 0x80008000u) | (word >> 4 & 0x07f007f0u);
    const unsigned power = (127u + 120u) << 7, powers = power << 16 | power;
    const auto times = [&](unsigned pair) {
        const __nv_bfloat162 result = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), *reinterpret_cast<const __nv_bfloat162*>(&powers));
        return *reinterpret_cast<const unsigned*>(&result);
    };
    return make_uint2(times(even), times(odd));
}

// Which digits of a number a lane takes: 8, behind none, 8 or 16 others; and times which powers of two, so that those of the smallest
// numbers are not lost.
struct Part { unsigned first, second, of_infinity; float power, further; };

__device__ __forceinline__ unsigned digits(float value, const Part& part) {
    float rest = (value - __uint_as_float(__float_as_uint(value) & part.first)) * part.power;
    rest = (rest - __uint_as_float(__float_as_uint(rest) & part.second)) * part.further;
    return fabsf(value) == INFINITY ? __float_as_uint(value) & part.of_infinity : __float_as_uint(rest);
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
__device__ __forceinline__ void arrange(uint2 (&to)[4], const float* __restrict__ from, const Part& part) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float4 four = reinterpret_cast<const float4*>(from)[j];
        to[j].x = __byte_perm(digits(four.x, part), digits(four.z, part), 0x7632);
        to[j].y = __byte_perm(digits(four.y, part), digits(four.w, part), 0x7632);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
multiply(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const float* __restrict__ scales, out_t* __restrict__ out,
         int m, int n) {
    __shared__ float met[WARPS][16 * TILES][9];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int first = blockIdx.x * (16 * TILES), row = blockIdx.y * EACH;
    const int number = g % PARTS;
    const unsigned upper_half = 0xffff0000u;
    const Part part{number > 0 ? upper_half : 0, number > 1 ? upper_half : 0, number > 0 ? 0 : upper_half, number > 0 ? 128.0f : 1.0f, number > 1 ? 256.0f : 1.0f};
    const bool has_x = g / PARTS < EACH && row + g / PARTS < m;
    const x_t* const of_x = x + (long long)(has_x ? row + g / PARTS : 0) * k;
    const weight_t* rows[TILES][2];
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {  // beyond the last row the last again
            rows[t][h] = weight + (long long)min(first + t * 16 + h * 8 + g, n - 1) * k;
        }
    }
    float sums[TILES][4] = {};
    unsigned nans[TILES][2] = {};
#pragma unroll 1
    for (int begin = warp * (STEP * LOADS) + q * 16; begin - q * 16 < k; begin += WARPS * STEP * LOADS) {
        uint4 held[LOADS][TILES][2];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * STEP;
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    held[l][t][h] = at < k ? *reinterpret_cast<const uint4*>(rows[t][h] + at) : make_uint4(0, 0, 0, 0);
                }
            }
        }
        float some[TILES][4] = {};  // sums of sums are more exact
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * STEP;
            uint2 b[4] = {};
            if (has_x && at < k) arrange(b, of_x + at, part);
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                const uint4 low = held[l][t][0], high = held[l][t][1];
                nans[t][0] |= nan_bits(low), nans[t][1] |= nan_bits(high);
                mma(some[t], widen(low.x), widen(high.x), b[0]);
                mma(some[t], widen(low.y), widen(high.y), b[1]);
                mma(some[t], widen(low.z), widen(high.z), b[2]);
                mma(some[t], widen(low.w), widen(high.w), b[3]);
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[t][i] += some[t][i];
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (any_nan(nans[t][h])) sums[t][2 * h] = sums[t][2 * h + 1] = NAN;
            met[warp][t * 16 + h * 8 + g][2 * q] = sums[t][2 * h], met[warp][t * 16 + h * 8 + g][2 * q + 1] = sums[t][2 * h + 1];
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < 16 * TILES * EACH; at += 32 * WARPS) {
        const int i = at / (16 * TILES), j = at % (16 * TILES);
        if (row + i >= m || first + j >= n) continue;
        float last = 0.0f, middle = 0.0f, sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            sum += met[w][j][3 * i], middle += met[w][j][3 * i + 1], last += met[w][j][3 * i + 2];
        }
        sum += middle * (1.0f / 128.0f) + last * (1.0f / 32768.0f);
        out[(long long)(row + i) * n + first + j] = out_t(sum * scales[first + j]);
    }
}
