/*---
op = "fp8_gemv"
note = "one block a multiprocessor, whose warps share out k: 8-bit weights come by cp.async through slots that are each lane's own, without a barrier, and go on coming while a block passes from 16 rows to its next 16; x lies in shared memory as tensor cores (mma.sync) take it, float32 in three parts of bfloat16, side by side; weights become pairs of 16 bits by a few operations on whole words, and products are exact; a row with a NaN weight is found by three operations on four weights"
when = "k % 16 == 0 and m * (1 + itemsize(x) // 4 * 2) <= 8 and m * (1 + itemsize(x) // 4 * 2) * k <= 65536"
specialize = ["m", "k", "columns", "stride", "depth", "tiles", "blocks"]
require = ["depth >= 3"]

[knobs]
WARPS = [16, 8]
KILOBYTES = [192, 96, 128]

[let]
columns = "m * (1 + itemsize(x) // 4 * 2)"
stride = "k // 16 + 4"
x_bytes = "columns * stride * 32"
depth = "min(24, (KILOBYTES * 1024 - x_bytes) // (WARPS * 1024))"
tiles = "ceil_div(n, 16)"
blocks = "min(tiles, sms)"

[[launch]]
entry = "multiply"
grid = ["blocks"]
block = ["32 * WARPS"]
shared = "x_bytes + WARPS * 1024 * depth"
args = ["x", "weight", "scales", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int PARTS = columns / m, STEP = 64, STEPS = (k + STEP - 1) / STEP;  // four lanes have 16 values of k each
extern __shared__ uint4 memory[];  // x, a column after the other, first halves and then second ones; then the slots

template <class T> struct Kind { using type = T; };
template <> struct Kind<float> { using type = __nv_bfloat16; };
using kind_t = Kind<x_t>::type;

__device__ __forceinline__ void mma(__nv_bfloat16, float (&d)[4], const uint2& low, const uint2& high, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(__half, float (&d)[4], const uint2& low, const uint2& high, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b0), "r"(b1));
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

// Which digits of a float32 number a column holds: 8, behind none, 8 or 16 others; and times which powers of two, so that those of
// the smallest numbers are not lost.
__device__ __forceinline__ unsigned digits(float value, int number) {
    const unsigned upper_half = 0xffff0000u;
    float rest = (value - __uint_as_float(__float_as_uint(value) & (number > 0 ? upper_half : 0))) * (number > 0 ? 128.0f : 1.0f);
    rest = (rest - __uint_as_float(__float_as_uint(rest) & (number > 1 ? upper_half : 0))) * (number > 1 ? 256.0f : 1.0f);
    return fabsf(value) == INFINITY ? __float_as_uint(value) & (number > 0 ? 0 : upper_half) : __float_as_uint(rest);
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
__device__ __forceinline__ void arrange(unsigned (&to)[8], const x_t* __restrict__ from, int number) {
    if constexpr (PARTS == 1) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint4 eight = reinterpret_cast<const uint4*>(from)[j];
            to[4 * j] = __byte_perm(eight.x, eight.y, 0x5410), to[4 * j + 1] = __byte_perm(eight.x, eight.y, 0x7632);
            to[4 * j + 2] = __byte_perm(eight.z, eight.w, 0x5410), to[4 * j + 3] = __byte_perm(eight.z, eight.w, 0x7632);
        }
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float4 four = reinterpret_cast<const float4*>(from)[j];
            to[2 * j] = __byte_perm(digits(four.x, number), digits(four.z, number), 0x7632);
            to[2 * j + 1] = __byte_perm(digits(four.y, number), digits(four.w, number), 0x7632);
        }
    }
}

__device__ __forceinline__ void copy16(void* to, const void* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
multiply(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const float* __restrict__ scales, out_t* __restrict__ out, int n) {
    __shared__ float met[2][WARPS][16][9];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    uint4* const slots = memory + columns * stride * 2 + warp * depth * 64 + lane;
    int ahead_tile = blockIdx.x, ahead_step = warp, ahead_slot = 0;  // what is asked for next
    const weight_t *upper, *lower;
    const auto aim = [&] {  // beyond the last row the last again
        upper = weight + (long long)min(ahead_tile * 16 + g, n - 1) * k + q * 16;
        lower = weight + (long long)min(ahead_tile * 16 + g + 8, n - 1) * k + q * 16;
    };
    aim();
    const auto request = [&] {
        if (ahead_tile < tiles && warp < STEPS) {
            if (k % STEP == 0 || ahead_step * STEP + q * 16 < k) {
                copy16(slots + ahead_slot * 64, upper + ahead_step * STEP);
                copy16(slots + ahead_slot * 64 + 32, lower + ahead_step * STEP);
            }
            ahead_step += WARPS;
            if (ahead_step >= STEPS) ahead_step = warp, ahead_tile += blocks, aim();
            if (++ahead_slot == depth) ahead_slot = 0;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int i = 0; i < depth - 1; ++i) request();
    for (int i = threadIdx.x; i < columns * (k / 16); i += 32 * WARPS) {
        const int column = i / (k / 16), at = i % (k / 16);
        unsigned words[8];
        arrange(words, x + (long long)(column / PARTS) * k + at * 16, column % PARTS);
        memory[column * stride + at] = make_uint4(words[0], words[1], words[2], words[3]);
        memory[(columns + column) * stride + at] = make_uint4(words[4], words[5], words[6], words[7]);
    }
    __syncthreads();
    const uint4* const of_x = memory + (g < columns ? g : 0) * stride + q;
    int slot = 0, turn = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles; tile += blocks, turn ^= 1) {
        float sums[4] = {};
        unsigned upper_nan = 0, lower_nan = 0;
#pragma unroll 1
        for (int step = warp; step < STEPS; step += WARPS) {
            asm volatile("cp.async.wait_group %0;" ::"n"(depth - 2) : "memory");
            uint4 low = slots[slot * 64], high = slots[slot * 64 + 32], first = make_uint4(0, 0, 0, 0), second = make_uint4(0, 0, 0, 0);
            const bool inside = k % STEP == 0 || step * STEP + q * 16 < k;
            if (!inside) low = high = make_uint4(0, 0, 0, 0);
            upper_nan |= nan_bits(low), lower_nan |= nan_bits(high);
            if (g < columns && inside) first = of_x[step * 4], second = of_x[columns * stride + step * 4];
            if (++slot == depth) slot = 0;
            request();
            float some[4] = {};  // sums of sums are more exact
            mma(kind_t{}, some, widen(kind_t{}, low.x), widen(kind_t{}, high.x), first.x, first.y);
            mma(kind_t{}, some, widen(kind_t{}, low.y), widen(kind_t{}, high.y), first.z, first.w);
            mma(kind_t{}, some, widen(kind_t{}, low.z), widen(kind_t{}, high.z), second.x, second.y);
            mma(kind_t{}, some, widen(kind_t{}, low.w), widen(kind_t{}, high.w), second.z, second.w);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[i] += some[i];
        }
        if (any_nan(upper_nan)) sums[0] = sums[1] = NAN;
        if (any_nan(lower_nan)) sums[2] = sums[3] = NAN;
#pragma unroll
        for (int i = 0; i < 4; ++i) met[turn][warp][i / 2 * 8 + g][2 * q + i % 2] = sums[i];
        __syncthreads();
        for (int at = threadIdx.x; at < 16 * m; at += 32 * WARPS) {
            const int i = at / 16, j = at % 16, row = tile * 16 + j;
            if (row >= n) continue;
            float sum = 0.0f, middle = 0.0f, last = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                sum += met[turn][w][j][i * PARTS];
                if constexpr (PARTS == 3) middle += met[turn][w][j][i * PARTS + 1], last += met[turn][w][j][i * PARTS + 2];
            }
            if constexpr (PARTS == 3) sum += middle * (1.0f / 128.0f) + last * (1.0f / 32768.0f);
            out[(long long)i * n + row] = out_t(sum * missing(kind_t{}) * scales[row]);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}
