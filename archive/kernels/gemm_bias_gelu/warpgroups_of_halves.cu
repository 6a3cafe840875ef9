/*---
op = "gemm_bias_gelu"
note = "float32 on warpgroups (wgmma): each factor is scaled by a power of two per row so that its largest value is near the top of float16, and split into two halves of 11 bits; three products of halves keep 22 bits over nine decades of a row, and sums leave the tensor cores after every 64 terms; lines with NaN or infinities are multiplied by ordinary arithmetic; any m and n"
when = "k >= 64"
dtypes = ["float32"]
specialize = ["lines", "columns", "depth", "wide_k", "steps", "blocks_m", "blocks_n"]

[knobs]
GROUP = [16, 8, 32]

[let]
lines = "m"
columns = "n"
depth = "k"
wide_k = "ceil_div(depth, 8) * 8"
steps = "ceil_div(depth, 64)"
blocks_m = "ceil_div(lines, 128)"
blocks_n = "ceil_div(columns, 128)"

[workspace]
a_high = { shape = ["lines", "wide_k"], dtype = "float16" }
a_low = { shape = ["lines", "wide_k"], dtype = "float16" }
b_high = { shape = ["columns", "wide_k"], dtype = "float16" }
b_low = { shape = ["columns", "wide_k"], dtype = "float16" }
a_scale = { shape = ["lines"], dtype = "int32" }
b_scale = { shape = ["columns"], dtype = "int32" }

[[launch]]
entry = "split_rows"
grid = ["lines"]
block = [256]
args = ["x", "a_high", "a_low", "a_scale"]

[[launch]]
entry = "split_rows"
grid = ["columns"]
block = [256]
args = ["weight", "b_high", "b_low", "b_scale"]

[[launch]]
entry = "multiply_halves"
grid = ["blocks_m * blocks_n"]
block = [256]
shared = "1024 + 3 * 65536"
args = ["x", "weight", "a_high", "a_low", "b_high", "b_low", "a_scale", "b_scale", "bias", "out"]
---*/
#include <cuda_fp16.h>

constexpr int STAGES = 3, TILE = 1024, STAGE = 4 * TILE;  // in pieces of 16 bytes: high and low tiles of both factors
constexpr int NOT_FINITE = 1 << 20;  // in place of an exponent
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at(to)), "l"(from), "r"(bytes) : "memory");
}

// The exponent by which a line is divided: its largest value comes to lie between 2^14 and 2^15. NaN is above infinity here.
__device__ __forceinline__ int exponent_of(int largest) {
    if (largest >= 0x7f800000) return NOT_FINITE;
    return largest == 0 ? 0 : ilogbf(__int_as_float(largest)) - 14;
}

__device__ __forceinline__ void split(float value, int exponent, __half& high, __half& low) {
    if (exponent == NOT_FINITE) {
        high = low = __float2half_rn(0.0f);
        return;
    }
    const float scaled = ldexpf(value, -exponent);
    high = __float2half_rn(scaled);
    low = __float2half_rn((scaled - __half2float(high)) * 2048.0f);
}

__device__ __forceinline__ float gelu(float x) { return 0.5f * x * erfcf(x * -0.70710678118654752f); }

extern "C" __global__ void __launch_bounds__(256)
split_rows(const float* __restrict__ a, __half* __restrict__ high, __half* __restrict__ low, int* __restrict__ scale) {
    __shared__ int of_warps[8];
    const float* const row = a + (long long)blockIdx.x * depth;
    int largest = 0;
#pragma unroll 4
    for (int k = threadIdx.x; k < depth; k += 256) largest = max(largest, __float_as_int(row[k]) & 0x7fffffff);
    for (int step = 16; step > 0; step /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int warp = 0; warp < 8; ++warp) largest = max(largest, of_warps[warp]);
    const int exponent = exponent_of(largest);
    if (threadIdx.x == 0) scale[blockIdx.x] = exponent;
    const long long to = (long long)blockIdx.x * wide_k;
#pragma unroll 2
    for (int k = 2 * threadIdx.x; k < wide_k; k += 512) {
        __half2 highs, lows;
        split(k < depth ? row[k] : 0.0f, exponent, highs.x, lows.x);
        split(k + 1 < depth ? row[k + 1] : 0.0f, exponent, highs.y, lows.y);
        *reinterpret_cast<__half2*>(high + to + k) = highs, *reinterpret_cast<__half2*>(low + to + k) = lows;
    }
}

// d = 64 rows of a by the columns of b, 16 terms, or d + that. Lines of both run along the sum.
__device__ __forceinline__ void multiply(float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, add, 1, 1, 0, 0;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(add));
}

// A tile with lines of 128 bytes, whose pieces of 16 bytes change places within eight lines.
__device__ __forceinline__ unsigned long long tile_at(const void* tile) {
    return 1ull << 62 | 64ull << 32 | 1ull << 16 | (at(tile) & 0x3ffff) >> 4;
}

extern "C" __global__ void __launch_bounds__(256, 1)
multiply_halves(const float* __restrict__ a, const float* __restrict__ b, const __half* __restrict__ a_high,
                const __half* __restrict__ a_low, const __half* __restrict__ b_high, const __half* __restrict__ b_low,
                const int* __restrict__ a_scale, const int* __restrict__ b_scale, const float* __restrict__ bias, float* __restrict__ out) {
    uint4* const tiles = memory + (1024 - at(memory) % 1024) % 1024 / 16;
    const int in_group = GROUP * blocks_n, first = (int)blockIdx.x / in_group * GROUP, here = (int)blockIdx.x % in_group;
    const int rows_of_blocks = min(GROUP, blocks_m - first);
    const int line0 = (first + here % rows_of_blocks) * 128, column0 = here / rows_of_blocks * 128;
    const int group = threadIdx.x / 128;
    const int a_line = threadIdx.x / 8, a_piece = threadIdx.x % 8;
    const auto fetch = [&](int step) {
        if (step < steps) {
            uint4* const to = tiles + step % STAGES * STAGE;
            const int k = step * 64 + a_piece * 8;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int line = a_line + i * 32, place = line * 8 + (a_piece ^ line % 8);
                const long long from = (long long)min(line0 + line, lines - 1) * wide_k + (k < wide_k ? k : 0);
                copy16(to + place, a_high + from, k < wide_k ? 16 : 0);
                copy16(to + TILE + place, a_low + from, k < wide_k ? 16 : 0);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int line = a_line + i * 32, place = line * 8 + (a_piece ^ line % 8);
                const long long from = (long long)min(column0 + line, columns - 1) * wide_k + (k < wide_k ? k : 0);
                copy16(to + 2 * TILE + place, b_high + from, k < wide_k ? 16 : 0);
                copy16(to + 3 * TILE + place, b_low + from, k < wide_k ? 16 : 0);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    float sum[64] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        fetch(step + STAGES - 1);  // into the tiles of the step before, with which all warps are done
        const uint4* const stage = tiles + step % STAGES * STAGE;
        const unsigned long long high_a = tile_at(stage + group * 512), low_a = tile_at(stage + TILE + group * 512);
        const unsigned long long high_b = tile_at(stage + 2 * TILE), low_b = tile_at(stage + 3 * TILE);
        float large[64], small[64];
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply(large, high_a + 2 * k, high_b + 2 * k, k > 0);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            multiply(small, high_a + 2 * k, low_b + 2 * k, k > 0);
            multiply(small, low_a + 2 * k, high_b + 2 * k, 1);
        }
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 64; ++i) sum[i] += fmaf(small[i], 0x1p-11f, large[i]);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    const int lane = threadIdx.x % 32, line = line0 + threadIdx.x / 32 * 16 + lane / 4;
    const int scales[2] = {line < lines ? a_scale[line] : 0, line + 8 < lines ? a_scale[line + 8] : 0};
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int row = line + i / 2 % 2 * 8, col = column0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row >= lines || col >= columns) continue;
        const int of_a = scales[i / 2 % 2], of_b = b_scale[col];
        float value = 0.0f;
        if (of_a == NOT_FINITE || of_b == NOT_FINITE) {
            for (int k = 0; k < depth; ++k) value = fmaf(a[(long long)row * depth + k], b[(long long)col * depth + k], value);
        } else {
            value = ldexpf(sum[i], of_a + of_b);
        }
        out[(long long)row * columns + col] = gelu(value + bias[col]);
    }
}
