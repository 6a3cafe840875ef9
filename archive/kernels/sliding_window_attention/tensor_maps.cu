/*---
op = "sliding_window_attention"
note = "flash attention by tensor maps (TMA) on warpgroups (wgmma): one warp has tiles of keys and values fetched, two of each in shared memory; two warpgroups have 64 queries each and keep the weights in registers; while the values of a tile are summed up, the weights of the next are found; tiles that no query of a block sees are left out"
when = "dim == 64 or dim == 128"
dtypes = ["bfloat16", "float16"]
specialize = ["dim", "span"]

[knobs]
KEYS = [128, 64]
BY_HEAD = [0, 1]
TURNS = [1, 0]

[let]
span = "KEYS"
seen = "min(window, length)"

[tensor_maps]
q_map = { tensor = "q", shape = ["batch * heads", "length", "dim"], box = [1, 64, 64], swizzle = 128 }
k_map = { tensor = "k", shape = ["batch * kv_heads", "length", "dim"], box = [1, "span", 64], swizzle = 128 }
v_map = { tensor = "v", shape = ["batch * kv_heads", "length", "dim"], box = [1, "span", 64], swizzle = 128 }

[[launch]]
entry = "attend"
grid = ["batch * heads * ceil_div(length, 128)"]
block = [384]
shared = "1024 + 2 * dim * 128 + 8 * dim * span + 128"
args = ["q_map", "k_map", "v_map", "out", "lse", "heads", "kv_heads", "length", "seen"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = q_t;
constexpr int PARTS = dim / 64, PIECES = dim / 8;  // a tile is made of parts of 64 columns, with lines of 128 bytes
constexpr int QUERIES = 64 * 128 * PARTS, KEYS_TILE = 128 * span * PARTS;  // in bytes; queries of a warpgroup
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
constexpr float FIRST = -1e30f;  // finite, so that the difference of two of them is no NaN
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void begin_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait(unsigned barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nbra again;\nover:\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void load(unsigned to, const CUtensorMap* map, int column, int line, int head, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
        ::"r"(to), "l"(map), "r"(column), "r"(line), "r"(head), "r"(barrier) : "memory");
}

// d += 64 lines of a by the lines of b, 16 terms; the lines of both run along the sum.
__device__ __forceinline__ void multiply(const __nv_bfloat16*, float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
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
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
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
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, add, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(const __half*, float (&d)[32], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, add, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(add));
}
// The same with lines of a in registers, and lines of b across the sum.
__device__ __forceinline__ void multiply_across(const __nv_bfloat16*, float (&d)[64], const unsigned* a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_across(const __half*, float (&d)[64], const unsigned* a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_across(const __nv_bfloat16*, float (&d)[32], const unsigned* a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_across(const __half*, float (&d)[32], const unsigned* a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
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

extern "C" __global__ void __launch_bounds__(384, 1)
attend(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
       const __grid_constant__ CUtensorMap v_map, out_t* __restrict__ out, float* __restrict__ lse, int heads, int kv_heads, int length, int seen) {
    const int group = threadIdx.x / 128 - 1;
    const int blocks = (length + 127) / 128, all = gridDim.x / blocks;  // blocks of a head, and heads
    const int head = BY_HEAD ? blockIdx.x / blocks : blockIdx.x % all, block = BY_HEAD ? blockIdx.x % blocks : blockIdx.x / all;
    const int first = (blocks - 1 - block) * 128;  // the longest rows first
    const int kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
    const int begin = max(0, first - seen + 1) / span, end = (min(first + 128, length) + span - 1) / span;
    const unsigned start = (at(memory) + 1023) / 1024 * 1024, k_ring = start + 2 * QUERIES, v_ring = k_ring + 2 * KEYS_TILE;
    const unsigned q_full = v_ring + 2 * KEYS_TILE, ended = q_full + 8;  // one for each warpgroup
    const unsigned k_full = ended + 16, v_full = k_full + 16, k_empty = v_full + 16, v_empty = k_empty + 16;
    const unsigned turn = v_empty + 16;  // when a warpgroup may issue its products: one weighs while the other multiplies
    if (threadIdx.x == 0) {
        begin_barrier(q_full, 1);
        for (int i = 0; i < 2; ++i) {
            begin_barrier(ended + 8 * i, 128), begin_barrier(turn + 8 * i, 1);
            begin_barrier(k_full + 8 * i, 1), begin_barrier(v_full + 8 * i, 1);
            begin_barrier(k_empty + 8 * i, 2), begin_barrier(v_empty + 8 * i, 2);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group < 0) {  // one thread of it fetches
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0) {
            expect(q_full, 2 * QUERIES);
            for (int i = 0; i < 2 * PARTS; ++i) load(start + i * 64 * 128, &q_map, i % PARTS * 64, first + i / PARTS * 64, head, q_full);
            for (int tile = begin; tile < end; ++tile) {
                const int count = tile - begin, stage = count % 2;
                wait(k_empty + 8 * stage, count / 2 % 2 ^ 1);
                expect(k_full + 8 * stage, KEYS_TILE);
                for (int i = 0; i < PARTS; ++i)
                    load(k_ring + stage * KEYS_TILE + i * span * 128, &k_map, i * 64, tile * span, kv_head, k_full + 8 * stage);
                wait(v_empty + 8 * stage, count / 2 % 2 ^ 1);
                expect(v_full + 8 * stage, KEYS_TILE);
                for (int i = 0; i < PARTS; ++i)
                    load(v_ring + stage * KEYS_TILE + i * span * 128, &v_map, i * 64, tile * span, kv_head, v_full + 8 * stage);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
        const bool tells = threadIdx.x % 128 == 0;  // of its warpgroup, that a tile is done with
        const float scale = 1.0f / sqrtf(float(dim)), scale2 = scale * 1.44269504f;  // exponentials are of base 2
        const int lowest = first + warp * 16;  // this warp's first query
        const unsigned queries_at = start + group * QUERIES;
        float weight[span / 2], sum[dim / 2], most[2] = {FIRST, FIRST}, total[2] = {}, shrink[2];
        unsigned half_weight[span / 4];
        const auto multiply_keys = [&](int count) {
            wait(k_full + 8 * (count % 2), count / 2 % 2);
            const unsigned keys_at = k_ring + count % 2 * KEYS_TILE;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int d = 0; d < 4 * PARTS; ++d)
                multiply((const T*)nullptr, weight, tile_at(queries_at + d / 4 * 64 * 128, 16) + 2 * (d % 4), tile_at(keys_at + d / 4 * span * 128, 16) + 2 * (d % 4), d > 0);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        };
        const auto add_values = [&](int count) {
            wait(v_full + 8 * (count % 2), count / 2 % 2);
            const unsigned values_at = v_ring + count % 2 * KEYS_TILE;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int j = 0; j < span / 16; ++j)
                multiply_across((const T*)nullptr, sum, half_weight + 4 * j, tile_at(values_at, span * 128) + 128 * j, 1);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        };
        // From scores to weights, of which the greatest so far is 1.
        const auto weigh = [&](int tile) {
            if ((tile + 1) * span > lowest + 1 || tile * span < lowest + 16 - seen) {
                const int ahead = tile * span + lane % 4 * 2 - (lowest + lane / 4);
#pragma unroll
                for (int i = 0; i < span / 2; ++i) {
                    const int back = i / 2 % 2 * 8 - i / 4 * 8 - i % 2;  // plus what is known at run time alone
                    if (back < ahead || back >= ahead + seen) weight[i] = -INFINITY;
                }
            }
            float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
            for (int i = 0; i < span / 2; ++i) highest[i / 2 % 2] = fmaxf(highest[i / 2 % 2], weight[i]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float now = fmaxf(most[half], most_of(highest[half]));
                shrink[half] = exp2_of((most[half] - now) * scale2);
                most[half] = now, total[half] *= shrink[half];
            }
            float of_tile[2] = {};  // summed up alone: sums of many equal weights err to one side
#pragma unroll
            for (int i = 0; i < span / 2; ++i) {
                weight[i] = exp2_of((weight[i] - most[i / 2 % 2]) * scale2);
                of_tile[i / 2 % 2] += weight[i];
            }
            total[0] += of_tile[0], total[1] += of_tile[1];
        };
        const auto pack = [&] {
#pragma unroll
            for (int i = 0; i < span / 4; ++i) half_weight[i] = packed((const T*)nullptr, weight[2 * i], weight[2 * i + 1]);
        };
#pragma unroll
        for (int i = 0; i < dim / 2; ++i) sum[i] = 0.0f;
        wait(q_full, 0);
        multiply_keys(0);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (tells) arrive(k_empty);
        weigh(begin);
        pack();
#pragma unroll 1
        for (int tile = begin + 1; tile < end; ++tile) {
            const int count = tile - begin;
            if (TURNS) wait(turn + 8 * group, (count ^ group) % 2);
            multiply_keys(count);
            add_values(count - 1);
            if (TURNS && tells) arrive(turn + 8 * (1 - group));
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (tells) arrive(k_empty + 8 * (count % 2));
            weigh(tile);
            while (__any_sync(0xffffffffu, total[0] < 0.0f)) total[0] = -total[0];  // never: or the compiler would wait before it weighs
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (tells) arrive(v_empty + 8 * ((count - 1) % 2));
            if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
                for (int i = 0; i < dim / 2; ++i) sum[i] *= shrink[i / 2 % 2];
            }
            pack();
        }
        add_values(end - 1 - begin);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        arrive(ended + 8 * group);
        wait(ended + 8 * group, 0);  // the warpgroup is done with its queries, in whose place its results are gathered
        char* const own = reinterpret_cast<char*>(memory) + (queries_at - at(memory)) + warp % 4 * 16 * dim * 2;
        out += (long long)head * length * dim, lse += (long long)head * length;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = half * 8 + lane / 4, line = lowest + row;
            const float whole = sum_of(total[half]), part = 1.0f / whole;
            if (lane % 4 == 0 && line < length) lse[line] = fmaf(most[half], scale, logf(whole));
#pragma unroll
            for (int n = 0; n < PIECES; ++n)
                *reinterpret_cast<unsigned*>(own + row * dim * 2 + (n ^ lane / 4) * 16 + lane % 4 * 4) =
                    packed((const T*)nullptr, sum[4 * n + 2 * half] * part, sum[4 * n + 2 * half + 1] * part);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16 * PIECES; i += 32) {
            const int row = (i + lane) / PIECES, piece = (i + lane) % PIECES, line = lowest + row;
            if (line < length)
                *reinterpret_cast<uint4*>(out + (long long)line * dim + piece * 8) = *reinterpret_cast<const uint4*>(own + row * dim * 2 + (piece ^ row % 8) * 16);
        }
    }
}
