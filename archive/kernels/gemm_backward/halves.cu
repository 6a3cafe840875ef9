/*---
op = "gemm_backward"
note = "both products in float32 on tensor cores (mma.sync): both factors are split into two float16 halves, after powers of two have made them equally large at each term of the sum, and others each line over 64 terms; three of the four products of halves are summed over 64 terms, and these sums in float32; right to 22 bits of each factor; results that are not finite are computed without halves"
when = "m >= 64 and n >= 64"
dtypes = ["float32"]
specialize = ["m", "n", "k"]

[knobs]
STAGES = [3, 2]
BAND = [8, 4, 16]

[let]
of_n = "ceil_div(n, 64)"
of_m = "ceil_div(m, 64)"
blocks_n = "ceil_div(n, 256) * (ceil_div(m, 64) + ceil_div(k, 64))"
blocks_m = "ceil_div(m * ceil_div(k, 1024), 8) + ceil_div(m * ceil_div(n, 1024), 8)"

[workspace]
exponents_n = { shape = [2, "n"], dtype = "int32", zero = true }
exponents_m = { shape = [2, "m"], dtype = "int32", zero = true }
parts_grad_out = { shape = ["m", "of_n", 128], dtype = "float16" }
parts_b = { shape = ["k", "of_n", 128], dtype = "float16" }
turned_a = { shape = ["k", "of_m", 128], dtype = "float16" }
turned_grad_out = { shape = ["n", "of_m", 128], dtype = "float16" }
units_grad_out = { shape = ["of_n", "m", 2], dtype = "float32" }
units_b = { shape = ["of_n", "k", 2], dtype = "float32" }
units_turned_a = { shape = ["of_m", "k", 2], dtype = "float32" }
units_turned_grad_out = { shape = ["of_m", "n", 2], dtype = "float32" }

[[launch]]
entry = "weigh"
grid = ["blocks_n + blocks_m"]
block = [256]
args = ["grad_out", "a", "b", "exponents_n", "exponents_m"]

[[launch]]
entry = "split_grad_out"
grid = ["ceil_div(m * of_n, 8)"]
block = [256]
args = ["grad_out", "exponents_n", "parts_grad_out", "units_grad_out"]

[[launch]]
entry = "split_b"
grid = ["ceil_div(k * of_n, 8)"]
block = [256]
args = ["b", "exponents_n", "parts_b", "units_b"]

[[launch]]
entry = "turn_a"
grid = ["ceil_div(k, 32) * of_m"]
block = [256]
args = ["a", "exponents_m", "turned_a", "units_turned_a"]

[[launch]]
entry = "turn_grad_out"
grid = ["ceil_div(n, 32) * of_m"]
block = [256]
args = ["grad_out", "exponents_m", "turned_grad_out", "units_turned_grad_out"]

[[launch]]
entry = "multiply_by_b"
grid = ["ceil_div(m, 128) * ceil_div(k, 128)"]
block = [256]
shared = "STAGES * 67584"
args = ["parts_grad_out", "units_grad_out", "parts_b", "units_b", "grad_out", "b", "grad_a"]

[[launch]]
entry = "multiply_by_grad_out"
grid = ["ceil_div(k, 128) * ceil_div(n, 128)"]
block = [256]
shared = "STAGES * 67584"
args = ["turned_a", "units_turned_a", "turned_grad_out", "units_turned_grad_out", "a", "grad_out", "grad_b"]
---*/
#include <cuda_fp16.h>

constexpr int TILE = 32768, STAGE = 2 * TILE + 2048;  // bytes: of 128 lines with 64 terms in two halves each; of both factors and their units
constexpr float FINITE = 3.402823466e38f;

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The greatest exponents, plus 127, of finite numbers: of each column, and of each line.
template <int LINES, int WIDTH> __device__ __forceinline__ void weigh_columns(const float* __restrict__ from, int* exponents, int block) {
    const int k = block % ((WIDTH + 255) / 256) * 256 + threadIdx.x, first = block / ((WIDTH + 255) / 256) * 64;
    if (k >= WIDTH) return;
    int most = 0;
#pragma unroll 8
    for (int i = 0; i < 64; ++i) {
        if (first + i >= LINES) break;
        const int bits = __float_as_int(from[(long long)(first + i) * WIDTH + k]) & 0x7fffffff;
        most = max(most, bits < 0x7f800000 ? bits : 0);
    }
    atomicMax(exponents + k, most >> 23);
}
template <int LINES, int WIDTH> __device__ __forceinline__ void weigh_lines(const float* __restrict__ from, int* exponents, int block) {
    constexpr int SEGMENTS = (WIDTH + 1023) / 1024;
    const int index = block * 8 + threadIdx.x / 32, k = index / SEGMENTS, first = index % SEGMENTS * 1024;
    if (k >= LINES) return;
    int most = 0;
#pragma unroll 8
    for (int i = threadIdx.x % 32; i < 1024; i += 32) {
        if (first + i >= WIDTH) break;
        const int bits = __float_as_int(from[(long long)k * WIDTH + first + i]) & 0x7fffffff;
        most = max(most, bits < 0x7f800000 ? bits : 0);
    }
    for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (threadIdx.x % 32 == 0) atomicMax(exponents + k, most >> 23);
}

extern "C" __global__ void __launch_bounds__(256) weigh(const float* __restrict__ grad_out, const float* __restrict__ a, const float* __restrict__ b, int* of_n, int* of_m) {
    int block = blockIdx.x;
    constexpr int FIRST = (n + 255) / 256 * ((m + 63) / 64), SECOND = (n + 255) / 256 * ((k + 63) / 64), THIRD = (m * ((k + 1023) / 1024) + 7) / 8;
    if (block < FIRST) return weigh_columns<m, n>(grad_out, of_n, block);
    if ((block -= FIRST) < SECOND) return weigh_columns<k, n>(b, of_n + n, block);
    if ((block -= SECOND) < THIRD) return weigh_lines<m, k>(a, of_m, block);
    weigh_lines<m, n>(grad_out, of_m + m, block - THIRD);
}

// A power of two for each term: what one factor is multiplied by and the other divided, so that both are equally large there.
template <int DEPTH> __device__ __forceinline__ float balance(const int* __restrict__ exponents, int k, bool left) {
    const int here = exponents[k], there = exponents[DEPTH + k], half = max((there - here) >> 1, -126);
    return here == 0 || there == 0 ? 1.0f : power_of_two(left ? half : -half);
}

// A warp splits 64 terms of a line, two a lane. They are scaled so that the greatest lies in 2**14..2**15; each is then the
// sum of two halves to 22 bits. The unit, a power of two, may exceed a float's range, and is kept as two factors.
__device__ __forceinline__ void split(float low, float high, __half* parts, float2* unit) {
    const int lane = threadIdx.x % 32;
    const bool finite = __all_sync(0xffffffffu, fabsf(low) <= FINITE && fabsf(high) <= FINITE);
    float most = fmaxf(fabsf(low), fabsf(high));
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    const int up = 14 + 127 - max(__float_as_int(most) >> 23, 1);
    const float first = power_of_two(up >> 1), second = power_of_two(up - (up >> 1));
    low = finite ? low * first * second : 0.0f, high = finite ? high * first * second : 0.0f;
    const __half2 upper = __floats2half2_rn(low, high);
    const float2 back = __half22float2(upper);
    reinterpret_cast<__half2*>(parts)[lane] = upper;
    reinterpret_cast<__half2*>(parts)[32 + lane] = __floats2half2_rn(low - back.x, high - back.y);
    // With NaN as the unit all results of this line are NaN, and are then computed without halves.
    if (lane == 0) *unit = finite ? make_float2(power_of_two(-(up >> 1)), power_of_two((up >> 1) - up)) : make_float2(NAN, NAN);
}

// Lines that run along the sum.
template <int LINES, int DEPTH> __device__ __forceinline__ void split_lines(const float* __restrict__ from, const int* __restrict__ exponents, __half* parts, float* units, bool left) {
    constexpr int CHUNKS = (DEPTH + 63) / 64;
    const long long index = blockIdx.x * 8ll + threadIdx.x / 32;
    if (index >= (long long)LINES * CHUNKS) return;
    const int line = index / CHUNKS, chunk = index % CHUNKS, at = chunk * 64 + threadIdx.x % 32 * 2;
    const float* const here = from + (long long)line * DEPTH + at;
    float low = 0.0f, high = 0.0f;
    if (at < DEPTH) low = here[0] * balance<DEPTH>(exponents, at, left);
    if (at + 1 < DEPTH) high = here[1] * balance<DEPTH>(exponents, at + 1, left);
    split(low, high, parts + index * 128, reinterpret_cast<float2*>(units) + (long long)chunk * LINES + line);
}
// Columns become lines: a block turns 64 terms of 32 columns.
template <int COLUMNS, int DEPTH> __device__ __forceinline__ void split_columns(const float* __restrict__ from, const int* __restrict__ exponents, __half* parts, float* units, bool left) {
    constexpr int CHUNKS = (DEPTH + 63) / 64;
    __shared__ float turned[64][33];
    const int chunk = blockIdx.x % CHUNKS, first = blockIdx.x / CHUNKS * 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = warp; i < 64; i += 8) {
        const bool inside = chunk * 64 + i < DEPTH && first + lane < COLUMNS;
        turned[i][lane] = inside ? from[(long long)(chunk * 64 + i) * COLUMNS + first + lane] * balance<DEPTH>(exponents, chunk * 64 + i, left) : 0.0f;
    }
    __syncthreads();
    for (int i = warp; i < 32 && first + i < COLUMNS; i += 8) {
        split(turned[2 * lane][i], turned[2 * lane + 1][i], parts + ((long long)(first + i) * CHUNKS + chunk) * 128,
              reinterpret_cast<float2*>(units) + (long long)chunk * COLUMNS + first + i);
    }
}

extern "C" __global__ void __launch_bounds__(256) split_grad_out(const float* __restrict__ from, const int* __restrict__ exponents, __half* parts, float* units) { split_lines<m, n>(from, exponents, parts, units, true); }
extern "C" __global__ void __launch_bounds__(256) split_b(const float* __restrict__ from, const int* __restrict__ exponents, __half* parts, float* units) { split_lines<k, n>(from, exponents, parts, units, false); }
extern "C" __global__ void __launch_bounds__(256) turn_a(const float* __restrict__ from, const int* __restrict__ exponents, __half* parts, float* units) { split_columns<k, m>(from, exponents, parts, units, true); }
extern "C" __global__ void __launch_bounds__(256) turn_grad_out(const float* __restrict__ from, const int* __restrict__ exponents, __half* parts, float* units) { split_columns<n, m>(from, exponents, parts, units, false); }

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void load4(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Lines of halves, and their units, of one chunk of the sum.
template <int LINES, int CHUNKS> __device__ __forceinline__ void fetch(unsigned to, unsigned to_units, const __half* parts, const float* units, int first, int chunk) {
    const int line = threadIdx.x / 16, piece = threadIdx.x % 16;
    to += line * 256 + (piece ^ line % 8) * 16;  // pieces of eight neighbouring lines lie in different banks
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int at = LINES % 128 == 0 ? first + line + i * 16 : min(first + line + i * 16, LINES - 1);
        const __half* const from = parts + ((long long)at * CHUNKS + chunk) * 128 + piece * 8;
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + i * 4096), "l"(from) : "memory");
    }
    if (threadIdx.x < 128) {
        const float* const from = units + 2 * ((long long)chunk * LINES + min(first + (int)threadIdx.x, LINES - 1));
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to_units + threadIdx.x * 8), "l"(from) : "memory");
    }
}

// What is not finite, computed without halves. A term of each factor is `step` or `stride` elements from the one before.
__device__ __noinline__ float plain(const float* a, int step, const float* b, int stride, int depth) {
    float sum = 0.0f;
    for (int i = 0; i < depth; ++i) sum = fmaf(a[(long long)i * step], b[(long long)i * stride], sum);
    return sum;
}

// Where `ALONG`, lines of both factors run along the sum, otherwise their columns do.
template <int LINES, int COLUMNS, int DEPTH, bool ALONG>
__device__ __forceinline__ void multiply(const __half* __restrict__ left, const float* __restrict__ left_units, const __half* __restrict__ right,
                                         const float* __restrict__ right_units, const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out) {
    constexpr int CHUNKS = (DEPTH + 63) / 64;
    extern __shared__ uint4 memory[];
    const unsigned start = at(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp % 2, warp_n = warp / 2;
    // Bands of tiles, so that blocks of the same time share lines of both factors in the L2 cache.
    constexpr int LINE_TILES = (LINES + 127) / 128, COLUMN_TILES = (COLUMNS + 127) / 128;
    const int band = blockIdx.x / (BAND * COLUMN_TILES) * BAND, rest = blockIdx.x % (BAND * COLUMN_TILES), tall = min(BAND, LINE_TILES - band);
    const int line0 = (band + rest % tall) * 128, column0 = rest / tall * 128;
    const int count = CHUNKS;
    const auto fetch_chunk = [&](int chunk) {
        if (chunk < count) {
            const unsigned to = start + chunk % STAGES * STAGE;
            fetch<LINES, CHUNKS>(to, to + 2 * TILE, left, left_units, line0, chunk);
            fetch<COLUMNS, CHUNKS>(to + TILE, to + 2 * TILE + 1024, right, right_units, column0, chunk);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int chunk = 0; chunk < STAGES - 1; ++chunk) fetch_chunk(chunk);
    const unsigned left_part = (warp_m * 64 + lane % 16) * 256, left_piece = (lane / 16 ^ lane % 8) * 16;
    const unsigned right_part = TILE + (warp_n * 32 + lane / 16 * 8 + lane % 8) * 256, right_piece = (lane / 8 % 2 ^ lane % 8) * 16;
    float sum[4][4][4] = {};
#pragma unroll 1
    for (int chunk = 0; chunk < count; ++chunk) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fetch_chunk(chunk + STAGES - 1);
        const unsigned tile = start + chunk % STAGES * STAGE;
        float made[4][4][4] = {};  // tensor cores cut off what does not fit into a sum, so theirs are short ones
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            unsigned upper[4][4], right_of[2][2][4];
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < 2; ++j) load4(right_of[half][j], tile + right_part + j * 4096 + half * 128 + (right_piece ^ q * 32));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                unsigned lower[4];
                load4(lower, tile + left_part + i * 4096 + 128 + (left_piece ^ q * 32));
                load4(upper[i], tile + left_part + i * 4096 + (left_piece ^ q * 32));
#pragma unroll
                for (int j = 0; j < 4; ++j) mma(made[i][j], lower, right_of[0][j / 2][j % 2 * 2], right_of[0][j / 2][j % 2 * 2 + 1]);
            }
#pragma unroll
            for (int half = 1; half >= 0; --half)
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) mma(made[i][j], upper[i], right_of[half][j / 2][j % 2 * 2], right_of[half][j / 2][j % 2 * 2 + 1]);
        }
        const float2* const units = reinterpret_cast<const float2*>(reinterpret_cast<const char*>(memory) + chunk % STAGES * STAGE + 2 * TILE);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float4 of_columns = *reinterpret_cast<const float4*>(units + 128 + warp_n * 32 + j * 8 + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float2 of_line = units[warp_m * 64 + i * 16 + half * 8 + lane / 4];
                    sum[i][j][2 * half] += made[i][j][2 * half] * (of_line.x * of_columns.x) * (of_line.y * of_columns.y);
                    sum[i][j][2 * half + 1] += made[i][j][2 * half + 1] * (of_line.x * of_columns.z) * (of_line.y * of_columns.w);
                }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int column = column0 + warp_n * 32 + j * 8 + lane % 4 * 2;
        if (column >= COLUMNS) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = line0 + warp_m * 64 + i * 16 + half * 8 + lane / 4;
                if (line >= LINES) continue;
                float low = sum[i][j][2 * half], high = sum[i][j][2 * half + 1];
                if (!(fabsf(low) <= FINITE)) low = ALONG ? plain(a + (long long)line * DEPTH, 1, b + (long long)column * DEPTH, 1, DEPTH) : plain(a + line, LINES, b + column, COLUMNS, DEPTH);
                if (!(fabsf(high) <= FINITE) && column + 1 < COLUMNS) {
                    high = ALONG ? plain(a + (long long)line * DEPTH, 1, b + (column + 1ll) * DEPTH, 1, DEPTH) : plain(a + line, LINES, b + column + 1, COLUMNS, DEPTH);
                }
                float* const to = out + (long long)line * COLUMNS + column;
                if constexpr (COLUMNS % 2 == 0) *reinterpret_cast<float2*>(to) = make_float2(low, high);
                else {
                    to[0] = low;
                    if (column + 1 < COLUMNS) to[1] = high;
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
multiply_by_b(const __half* __restrict__ left, const float* __restrict__ left_units, const __half* __restrict__ right,
              const float* __restrict__ right_units, const float* __restrict__ grad_out, const float* __restrict__ b, float* __restrict__ grad_a) {
    multiply<m, k, n, true>(left, left_units, right, right_units, grad_out, b, grad_a);
}
extern "C" __global__ void __launch_bounds__(256)
multiply_by_grad_out(const __half* __restrict__ left, const float* __restrict__ left_units, const __half* __restrict__ right,
                     const float* __restrict__ right_units, const float* __restrict__ a, const float* __restrict__ grad_out, float* __restrict__ grad_b) {
    multiply<k, n, m, false>(left, left_units, right, right_units, a, grad_out, grad_b);
}
