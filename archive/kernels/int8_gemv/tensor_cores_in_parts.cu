/*---
op = "int8_gemv"
note = "16 rows of the matrix a block, whose warps share out k: 16-byte loads of 8-bit weights, many of them in flight, become pairs of 16 bits by a few operations on whole words, and tensor cores (mma.sync) multiply them exactly: each row of float32 x is three in bfloat16, its leading, middle and last 8 digits, so that two rows are multiplied at once; short sums are added up in float32"
when = "k % 16 == 0"
dtypes = ["float32"]
specialize = ["k"]

[knobs]
LOADS = [4, 2, 8]
WARPS = [8, 4, 16]

[[launch]]
entry = "multiply"
grid = ["ceil_div(n, 16)", "ceil_div(m, 2)"]
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
__device__ __forceinline__ unsigned minus(unsigned a, unsigned b) {
    const __nv_bfloat162 result = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const unsigned*>(&result);
}

// Even and odd bytes of a word: bfloat16 has places for 7 digits behind 128: the sign is what turns the 128 to be taken away into 256.
__device__ __forceinline__ uint2 widen(unsigned word) {
    const unsigned odd = word >> 8;
    return make_uint2(minus((word & 0x007f007fu) | 0x43004300u, (word & 0x00800080u) | 0x43004300u),
                      minus((odd & 0x007f007fu) | 0x43004300u, (odd & 0x00800080u) | 0x43004300u));
}

// The digits of a number that part 0, 1 or 2 has, times 1, 2^7 or 2^15, so that those of the smallest are not lost; what
// is not finite is in the first alone.
__device__ __forceinline__ unsigned digits(float value, int part) {
    const unsigned bits = __float_as_uint(value), leading = bits & 0xffff0000u;
    const float rest = (bits & 0x7f800000u) == 0x7f800000u ? 0.0f : (value - __uint_as_float(leading)) * 128.0f;
    const unsigned middle = __float_as_uint(rest) & 0xffff0000u;
    return part == 0 ? leading : part == 1 ? middle : __float_as_uint((rest - __uint_as_float(middle)) * 256.0f);
}

// Of 16 values of x the even and odd ones of each four, as widened weights are.
__device__ __forceinline__ void arrange(uint2 (&to)[4], const float* __restrict__ from, int part) {
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
    __shared__ float met[WARPS][16][9];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int first = blockIdx.x * 16, row = blockIdx.y * EACH, part = g % PARTS;
    const bool has_x = g / PARTS < EACH && row + g / PARTS < m;
    const x_t* const of_x = x + (long long)(has_x ? row + g / PARTS : 0) * k;
    const weight_t* const upper = weight + (long long)min(first + g, n - 1) * k;  // beyond the last row the last again
    const weight_t* const lower = weight + (long long)min(first + g + 8, n - 1) * k;
    float sums[4] = {};
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
            if (has_x && at < k) arrange(b, of_x + at, part);
            mma(some, widen(low[l].x), widen(high[l].x), b[0]);
            mma(some, widen(low[l].y), widen(high[l].y), b[1]);
            mma(some, widen(low[l].z), widen(high[l].z), b[2]);
            mma(some, widen(low[l].w), widen(high[l].w), b[3]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += some[i];
    }
    met[warp][g][2 * q] = sums[0], met[warp][g][2 * q + 1] = sums[1];
    met[warp][g + 8][2 * q] = sums[2], met[warp][g + 8][2 * q + 1] = sums[3];
    __syncthreads();
    for (int at = threadIdx.x; at < 16 * EACH; at += 32 * WARPS) {
        const int i = at / 16, j = at % 16;
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
