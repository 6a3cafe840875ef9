/*---
op = "int8_gemv"
note = "16 rows of the matrix a block, whose warps share out k: 16-byte loads of 8-bit weights, many of them in flight, become pairs of 16 bits by a few operations on whole words, and tensor cores (mma.sync) multiply them by up to 8 rows of x at once, exactly; short sums are added up in float32"
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

__device__ __forceinline__ unsigned minus(__half, unsigned a, unsigned b) {
    const __half2 result = __hsub2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
    return *reinterpret_cast<const unsigned*>(&result);
}
__device__ __forceinline__ unsigned minus(__nv_bfloat16, unsigned a, unsigned b) {
    const __nv_bfloat162 result = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const unsigned*>(&result);
}

// Even and odd bytes of a word: in the last places of 1024 they are halves, from which 1152 is taken for a sign turned.
__device__ __forceinline__ uint2 widen(__half kind, unsigned word) {
    const unsigned turned = word ^ 0x80808080u;
    return make_uint2(minus(kind, (turned & 0x00ff00ffu) | 0x64006400u, 0x64806480u),
                      minus(kind, (turned >> 8 & 0x00ff00ffu) | 0x64006400u, 0x64806480u));
}
// bfloat16 has places for 7 digits behind 128: the sign is what turns the 128 to be taken away into 256.
__device__ __forceinline__ uint2 widen(__nv_bfloat16 kind, unsigned word) {
    const unsigned odd = word >> 8;
    return make_uint2(minus(kind, (word & 0x007f007fu) | 0x43004300u, (word & 0x00800080u) | 0x43004300u),
                      minus(kind, (odd & 0x007f007fu) | 0x43004300u, (odd & 0x00800080u) | 0x43004300u));
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
            mma(x_t{}, some, widen(x_t{}, low[l].x), widen(x_t{}, high[l].x), b[0]);
            mma(x_t{}, some, widen(x_t{}, low[l].y), widen(x_t{}, high[l].y), b[1]);
            mma(x_t{}, some, widen(x_t{}, low[l].z), widen(x_t{}, high[l].z), b[2]);
            mma(x_t{}, some, widen(x_t{}, low[l].w), widen(x_t{}, high[l].w), b[3]);
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
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += met[w][j][i];
        out[(long long)(row + i) * n + first + j] = out_t(sum * scales[first + j]);
    }
}
