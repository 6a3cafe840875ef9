/*---
op = "causal_attention"
note = "flash attention on warpgroups (wgmma): two of them have 64 queries each; tiles of keys and values come by cp.async, two of each in shared memory; while a tile's weights are found in registers, tensor cores make the scores of the next; weights go through shared memory into the product with the values; tiles of hidden keys are skipped, and the longest rows begin first"
when = "dim == 64 or dim == 128"
dtypes = ["bfloat16", "float16"]
specialize = ["dim", "span"]

[knobs]
KEYS = [128, 64]
BY_HEAD = [0, 1]

[let]
span = "KEYS"

[[launch]]
entry = "attend"
grid = ["batch * heads * ceil_div(length, 128)"]
block = [256]
shared = "1024 + 2 * dim * 128 + 8 * dim * span + 256 * span"
args = ["q", "k", "v", "out", "lse", "length"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = q_t;
constexpr int PARTS = dim / 64, PIECES = dim / 8;      // a tile is made of parts of 64 columns, with lines of 128 bytes
constexpr int QUERIES = 128 * 128 * PARTS, KEYS_TILE = 128 * span * PARTS, WEIGHTS = 128 * span;  // in bytes; weights of a warpgroup
constexpr float FIRST = -1e30f;  // finite, so that the difference of two of them is no NaN

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(unsigned to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

// d += 64 lines of a by the lines of b, 16 terms; the lines of both run along the sum.
__device__ __forceinline__ void multiply(const __nv_bfloat16*, float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
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
__device__ __forceinline__ void multiply(const __half*, float (&d)[64], unsigned long long a, unsigned long long b, int add) {
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
__device__ __forceinline__ void multiply(const __nv_bfloat16*, float (&d)[32], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, add, 1, 1, 0, 0;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(const __half*, float (&d)[32], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, add, 1, 1, 0, 0;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(add));
}
// The same with lines of b across the sum.
__device__ __forceinline__ void multiply_across(const __nv_bfloat16*, float (&d)[64], unsigned long long a, unsigned long long b, int add) {
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
__device__ __forceinline__ void multiply_across(const __half*, float (&d)[64], unsigned long long a, unsigned long long b, int add) {
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
__device__ __forceinline__ void multiply_across(const __nv_bfloat16*, float (&d)[32], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, add, 1, 1, 0, 1;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_across(const __half*, float (&d)[32], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, add, 1, 1, 0, 1;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(add));
}

// A tile whose pieces of 16 bytes change places within eight lines; `leading` is the distance of parts of 64 columns.
__device__ __forceinline__ unsigned long long tile_at(unsigned tile, int leading) {
    return 1ull << 62 | 64ull << 32 | (unsigned long long)(leading / 16) << 16 | (tile & 0x3ffff) >> 4;
}

__device__ __forceinline__ unsigned packed(const __nv_bfloat16*, float low, float high) {
    union { __nv_bfloat162 two; unsigned word; } made;
    made.two = __floats2bfloat162_rn(low, high);
    return made.word;
}
__device__ __forceinline__ unsigned packed(const __half*, float low, float high) {
    union { __half2 two; unsigned word; } made;
    made.two = __floats2half2_rn(low, high);
    return made.word;
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The four lanes that hold a row.
__device__ __forceinline__ float most_of(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float sum_of(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Lines of a matrix into a tile; zeros beyond the last.
template <int COUNT> __device__ __forceinline__ void fetch(unsigned to, const T* from, int first, int lines) {
    constexpr int EACH = 256 / PIECES;
    const int line = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const T* const here = from + (long long)(first + line) * dim + piece * 8;
    to += piece / 8 * COUNT * 128 + line * 128 + (piece % 8 ^ line % 8) * 16;
#pragma unroll
    for (int i = 0; i < COUNT / EACH; ++i) {
        const bool inside = first + line + i * EACH < lines;
        copy16(to + i * EACH * 128, inside ? here + i * EACH * dim : from, inside);
    }
}

extern "C" __global__ void __launch_bounds__(256, 1)
attend(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v, out_t* __restrict__ out,
       float* __restrict__ lse, int length) {
    extern __shared__ uint4 memory[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = threadIdx.x / 128;
    const int blocks = (length + 127) / 128, all = gridDim.x / blocks;  // blocks of a head, and heads
    const int head = BY_HEAD ? blockIdx.x / blocks : blockIdx.x % all, block = BY_HEAD ? blockIdx.x % blocks : blockIdx.x / all;
    const int first = (blocks - 1 - block) * 128;  // the longest rows first
    const int begin = 0, end = (min(first + 128, length) + span - 1) / span;
    q += (long long)head * length * dim;
    k += (long long)head * length * dim, v += (long long)head * length * dim;
    char* const base = reinterpret_cast<char*>(memory) + (1024 - at(memory) % 1024) % 1024;
    const unsigned start = (at(memory) + 1023) / 1024 * 1024, k_ring = start + QUERIES, v_ring = k_ring + 2 * KEYS_TILE;
    const unsigned weights = v_ring + 2 * KEYS_TILE + group * WEIGHTS;
    fetch<128>(start, q, first, length);
    fetch<span>(k_ring + begin % 2 * KEYS_TILE, k, begin * span, length);
    fetch<span>(v_ring + begin % 2 * KEYS_TILE, v, begin * span, length);
    if (begin + 1 < end) fetch<span>(k_ring + (begin + 1) % 2 * KEYS_TILE, k, (begin + 1) * span, length);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const float scale = 1.0f / sqrtf(float(dim)), scale2 = scale * 1.44269504f;  // exponentials are of base 2
    const int lowest = first + warp * 16;  // this warp's first query
    float even[span / 2], odd[span / 2], sum[dim / 2] = {}, most[2] = {FIRST, FIRST}, total[2] = {};
    const auto score = [&](int tile, float (&to)[span / 2]) {
        const unsigned queries_at = start + group * 64 * 128, keys_at = k_ring + tile % 2 * KEYS_TILE;
#pragma unroll
        for (int i = 0; i < span / 2; ++i) to[i] = 0.0f;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int d = 0; d < 4 * PARTS; ++d) {
            multiply(q, to, tile_at(queries_at + d / 4 * 128 * 128, 16) + 2 * (d % 4), tile_at(keys_at + d / 4 * span * 128, 16) + 2 * (d % 4), 1);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    };
    // While the weights of a tile are found, tensor cores make the scores of the next.
    const auto step = [&](int tile, float (&here)[span / 2], float (&next)[span / 2]) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (tile + 2 < end) fetch<span>(k_ring + tile % 2 * KEYS_TILE, k, (tile + 2) * span, length);
        if (tile + 1 < end) {
            fetch<span>(v_ring + (tile + 1) % 2 * KEYS_TILE, v, (tile + 1) * span, length);
            score(tile + 1, next);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if ((tile + 1) * span > lowest + 1) {
            const int ahead = tile * span + lane % 4 * 2 - (lowest + lane / 4);
#pragma unroll
            for (int i = 0; i < span / 2; ++i) {
                const int back = i / 2 % 2 * 8 - i / 4 * 8 - i % 2;  // plus what is known at run time alone
                if (back < ahead) here[i] = -INFINITY;
            }
        }
        float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int i = 0; i < span / 2; ++i) highest[i / 2 % 2] = fmaxf(highest[i / 2 % 2], here[i]);
        if (__any_sync(0xffffffffu, highest[0] > most[0] || highest[1] > most[1])) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float now = fmaxf(most[half], most_of(highest[half]));
                const float shrink = exp2_of((most[half] - now) * scale2);
                most[half] = now, total[half] *= shrink;
#pragma unroll
                for (int n = 0; n < dim / 8; ++n) sum[4 * n + 2 * half] *= shrink, sum[4 * n + 2 * half + 1] *= shrink;
            }
        }
        float of_tile[2] = {};  // summed up alone: sums of many equal weights err to one side
#pragma unroll
        for (int j = 0; j < span / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float low = exp2_of((here[4 * j + 2 * half] - most[half]) * scale2), high = exp2_of((here[4 * j + 2 * half + 1] - most[half]) * scale2);
                of_tile[half] += low + high;
                const int line = warp % 4 * 16 + half * 8 + lane / 4;
                const unsigned to = weights - start + j / 8 * 64 * 128 + line * 128 + (j % 8 ^ lane / 4) * 16 + lane % 4 * 4;
                *reinterpret_cast<unsigned*>(base + to) = packed(q, low, high);
            }
        total[0] += of_tile[0], total[1] += of_tile[1];
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        const unsigned values_at = v_ring + tile % 2 * KEYS_TILE;
#pragma unroll
        for (int j = 0; j < span / 16; ++j) {
            multiply_across(q, sum, tile_at(weights + j / 4 * 64 * 128, 16) + 2 * (j % 4), tile_at(values_at, span * 128) + 128 * j, 1);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    };
    asm volatile("cp.async.wait_all;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    score(begin, even);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll 1
    for (int tile = begin; tile < end; tile += 2) {
        step(tile, even, odd);
        if (tile + 1 < end) step(tile + 1, odd, even);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    out += (long long)head * length * dim, lse += (long long)head * length;
    char* const own = base + warp * 16 * dim * 2;  // results go through the place of the queries, so that stores are wide
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = half * 8 + lane / 4, line = lowest + row;
        const float all = sum_of(total[half]), part = 1.0f / all;
        if (lane % 4 == 0 && line < length) lse[line] = fmaf(most[half], scale, logf(all));
#pragma unroll
        for (int n = 0; n < PIECES; ++n) {
            *reinterpret_cast<unsigned*>(own + row * dim * 2 + (n ^ lane / 4) * 16 + lane % 4 * 4) = packed(q, sum[4 * n + 2 * half] * part, sum[4 * n + 2 * half + 1] * part);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * PIECES; i += 32) {
        const int row = (i + lane) / PIECES, piece = (i + lane) % PIECES, line = lowest + row;
        if (line < length) *reinterpret_cast<uint4*>(out + (long long)line * dim + piece * 8) = *reinterpret_cast<const uint4*>(own + row * dim * 2 + (piece ^ row % 8) * 16);
    }
}
