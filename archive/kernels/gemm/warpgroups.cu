/*---
op = "gemm"
note = "warpgroups (wgmma): two of them multiply 64 rows each by the same columns, straight from tiles in shared memory with a swizzle of 128 bytes, the right factor read across; cp.async fills a ring of tiles two steps ahead while products run; blocks go through the result in groups, so that both factors stay in the L2 cache"
when = "k % 8 == 0 and n % 8 == 0 and itemsize(out) == 2"
specialize = ["lines", "columns", "depth", "tn", "steps", "blocks_m", "blocks_n"]

[knobs]
TN = [256, 128]
STAGES = [4, 3]
GROUP = [16, 8, 32]

[let]
lines = "m"
columns = "n"
depth = "k"
tn = "min(TN, 128 + 128 * min(1, (columns - 1) // 128))"
steps = "ceil_div(depth, 64)"
blocks_m = "ceil_div(lines, 128)"
blocks_n = "ceil_div(columns, tn)"
stage_bytes = "128 * (128 + tn)"

[[launch]]
entry = "gemm_of_warpgroups"
grid = ["blocks_m * blocks_n"]
block = [256]
shared = "1024 + STAGES * stage_bytes"
args = ["a", "b", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = a_t;
constexpr int A_STAGE = 128 * 8, STAGE = (128 + tn) * 8, AHEAD = STAGES - 2;  // tiles in pieces of 16 bytes
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at(to)), "l"(from), "r"(bytes) : "memory");
}

// d += 64 rows of a by the columns of b, 16 terms. Lines of a run along the sum, those of b across it.
__device__ __forceinline__ void multiply(const __nv_bfloat16*, float (&d)[128], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, add, 1, 1, 0, 1;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
        "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(const __half*, float (&d)[128], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, add, 1, 1, 0, 1;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
        "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(const __nv_bfloat16*, float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, add, 1, 1, 0, 1;\n}"
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
__device__ __forceinline__ void multiply(const __half*, float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, add, 1, 1, 0, 1;\n}"
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

// A tile with lines of 128 bytes, whose pieces of 16 bytes change places within eight lines. For the right factor,
// `leading` is the distance of its blocks of 64 columns.
__device__ __forceinline__ unsigned long long tile_at(const void* tile, int leading) {
    return 1ull << 62 | 64ull << 32 | (unsigned long long)(leading / 16) << 16 | (at(tile) & 0x3ffff) >> 4;
}

extern "C" __global__ void __launch_bounds__(256, 1)
gemm_of_warpgroups(const T* __restrict__ left, const T* __restrict__ right, T* __restrict__ out) {
    uint4* const tiles = memory + (1024 - at(memory) % 1024) % 1024 / 16;
    const int in_group = GROUP * blocks_n, first = (int)blockIdx.x / in_group * GROUP, here = (int)blockIdx.x % in_group;
    const int high = min(GROUP, blocks_m - first);
    const int line0 = (first + here % high) * 128, column0 = here / high * tn;
    const int group = threadIdx.x / 128;
    constexpr int PIECES = tn / 8, LINES_AT_ONCE = 256 / PIECES;
    const int a_line = threadIdx.x / 8, a_piece = threadIdx.x % 8, b_line = threadIdx.x / PIECES, b_piece = threadIdx.x % PIECES;
    const int column = column0 + b_piece * 8;
    const auto fetch = [&](int step) {
        if (step < steps) {
            uint4* const to = tiles + step % STAGES * STAGE;
            const int k = step * 64 + a_piece * 8;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int line = a_line + i * 32;
                copy16(to + line * 8 + (a_piece ^ line % 8),
                       left + (long long)min(line0 + line, lines - 1) * depth + (k < depth ? k : 0), k < depth ? 16 : 0);
            }
#pragma unroll
            for (int i = 0; i < 64 / LINES_AT_ONCE; ++i) {
                const int line = b_line + i * LINES_AT_ONCE;
                const bool inside = step * 64 + line < depth && column < columns;
                copy16(to + A_STAGE + b_piece / 8 * 512 + line * 8 + (b_piece % 8 ^ line % 8),
                       right + (inside ? (long long)(step * 64 + line) * columns + column : 0), inside ? 16 : 0);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) fetch(step);
    float sum[tn / 2] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        const uint4* const a_tile = tiles + step % STAGES * STAGE + group * 512;
        const unsigned long long a = tile_at(a_tile, 16), b = tile_at(tiles + step % STAGES * STAGE + A_STAGE, 8192);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply(left, sum, a + 2 * k, b + 128 * k, 1);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        fetch(step + AHEAD);  // into the tiles of two steps ago, with which all warps are done
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    struct alignas(4) Two { T at[2]; };
    const int lane = threadIdx.x % 32, line = line0 + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < tn / 8; ++j) {
        const int to = column0 + j * 8 + lane % 4 * 2;
        if (to >= columns) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (line + 8 * half >= lines) continue;
            Two made;
            made.at[0] = T(sum[4 * j + 2 * half]), made.at[1] = T(sum[4 * j + 2 * half + 1]);
            *reinterpret_cast<Two*>(out + (long long)(line + 8 * half) * columns + to) = made;
        }
    }
}
