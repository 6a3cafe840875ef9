/*---
op = "grouped_query_attention"
note = "flash attention on tensor cores (mma.sync): each warp has 32 queries, and tiles of keys and values come by cp.async, two of each in shared memory; scores stay in the fragments of the first product, and their exponentials become the left factor of the second without leaving registers; sums are rescaled only where one of 16 rows has a new maximum; tiles of hidden keys are skipped, and the longest rows begin first"
when = "dim % 8 == 0 and dim <= 128"
dtypes = ["bfloat16", "float16"]
specialize = ["dim"]

[knobs]
KEYS = [64, 32, 128]
ROWS = [32, 16]
WARPS = [4, 8]

[let]
pitch = "2 * ceil_div(dim, 16) + 1"

[[launch]]
entry = "attend"
grid = ["batch * heads", "ceil_div(length, ROWS * WARPS)"]
block = ["32 * WARPS"]
shared = "16 * pitch * (ROWS * WARPS + 4 * KEYS)"
args = ["q", "k", "v", "out", "lse", "heads", "kv_heads", "length"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = q_t;
constexpr int DEPTH = (dim + 15) / 16, PIECES = 2 * DEPTH, PITCH = PIECES + 1;  // of 16 bytes; odd, so that eight lines lie in different banks
constexpr int TILES = ROWS / 16, NEXT = KEYS / 8, QUERIES = ROWS * WARPS, THREADS = 32 * WARPS, STAGE = 32 * KEYS * PITCH;  // STAGE in bytes
constexpr bool HELD = DEPTH <= 4;  // whether the queries stay in registers
constexpr float FIRST = -1e30f;    // finite, so that the difference of two of them is no NaN
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(unsigned to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

__device__ __forceinline__ void load4(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load4_transposed(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void mma(const __nv_bfloat16*, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(const __half*, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

// Lines of a matrix into shared memory; zeros beyond its last line and column.
template <int COUNT> __device__ __forceinline__ void fetch(unsigned to, const T* from, int first, int lines) {
    constexpr int STEPS = (COUNT * PIECES + THREADS - 1) / THREADS, EACH = THREADS / PIECES;
    if constexpr (THREADS % PIECES == 0 && COUNT % EACH == 0) {
        const int line = threadIdx.x / PIECES, column = threadIdx.x % PIECES * 8;
        const T* const here = from + (long long)(first + line) * dim + column;
        to += 16 * (line * PITCH + column / 8);
        if (first + COUNT <= lines && dim % 16 == 0) {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) copy16(to + 16 * i * EACH * PITCH, here + i * EACH * dim, true);
        } else {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                const bool inside = first + line + i * EACH < lines && column < dim;
                copy16(to + 16 * i * EACH * PITCH, inside ? here + i * EACH * dim : from, inside);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            const int index = threadIdx.x + i * THREADS, line = index / PIECES, column = index % PIECES * 8;
            if (line >= COUNT) break;
            const bool inside = first + line < lines && column < dim;
            copy16(to + 16 * (line * PITCH + column / 8), inside ? from + (long long)(first + line) * dim + column : from, inside);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, ROWS == 32 && WARPS == 4 ? 2 : 1)
attend(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v, out_t* __restrict__ out,
       float* __restrict__ lse, int heads, int kv_heads, int length) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // the longest rows first
    const long long head = blockIdx.x;
    const long long kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
    q += head * length * dim;
    k += kv_head * length * dim, v += kv_head * length * dim;
    constexpr int begin = 0;
    const int end = (min(first + QUERIES, length) + KEYS - 1) / KEYS;
    const int lowest = first + warp * ROWS;  // this warp's first query
    uint4* const own = memory + warp * ROWS * PITCH;  // this warp's queries, and at the end its results
    const unsigned start = at(memory), ring = start + 16 * QUERIES * PITCH;
    fetch<QUERIES>(start, q, first, length);
    fetch<KEYS>(ring + begin % 2 * STAGE, k, begin * KEYS, length);
    fetch<KEYS>(ring + begin % 2 * STAGE + 16 * KEYS * PITCH, v, begin * KEYS, length);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const float scale = 1.0f / sqrtf(float(dim)), scale2 = scale * 1.44269504f;  // exponentials are of base 2
    const unsigned own_part = start + 16 * ((warp * ROWS + lane % 16) * PITCH + lane / 16);
    const unsigned key_part = 16 * ((lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2);
    const unsigned value_part = 16 * ((KEYS + lane % 16) * PITCH + lane / 16);
    unsigned held[HELD ? TILES : 1][HELD ? DEPTH : 1][4];
    float sum[TILES][PIECES][4] = {}, most[TILES][2], total[TILES][2] = {};
#pragma unroll
    for (int i = 0; i < TILES; ++i) most[i][0] = most[i][1] = FIRST;
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        const unsigned here = ring + tile % 2 * STAGE;
        if (tile + 1 < end) {
            const unsigned to = ring + (tile + 1) % 2 * STAGE;
            fetch<KEYS>(to, k, (tile + 1) * KEYS, length);
            fetch<KEYS>(to + 16 * KEYS * PITCH, v, (tile + 1) * KEYS, length);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if constexpr (HELD) {
            if (tile == begin) {
#pragma unroll
                for (int i = 0; i < TILES; ++i)
#pragma unroll
                    for (int d = 0; d < DEPTH; ++d) load4(held[i][d], own_part + 16 * (i * 16 * PITCH + 2 * d));
            }
        }
        if (tile * KEYS >= lowest + ROWS) continue;  // hidden from all queries of this warp
        float score[TILES][NEXT][4] = {};
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            unsigned query[TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                if constexpr (!HELD) load4(query[i], own_part + 16 * (i * 16 * PITCH + 2 * d));
            }
#pragma unroll
            for (int j = 0; j < NEXT; j += 2) {
                unsigned key[4];
                load4(key, here + key_part + 16 * (j * 8 * PITCH + 2 * d));
#pragma unroll
                for (int i = 0; i < TILES; ++i) {
                    const unsigned(&left)[4] = HELD ? held[i][d] : query[i];
                    mma(q, score[i][j], left, key[0], key[1]);
                    mma(q, score[i][j + 1], left, key[2], key[3]);
                }
            }
        }
        if ((tile + 1) * KEYS > lowest + 1) {
            const int ahead = tile * KEYS + lane % 4 * 2 - (lowest + lane / 4);
#pragma unroll
            for (int i = 0; i < TILES; ++i)
#pragma unroll
                for (int j = 0; j < NEXT; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int back = i * 16 + e / 2 * 8 - j * 8 - e % 2;  // plus what is known at run time alone
                        if (back < ahead) score[i][j][e] = -INFINITY;
                    }
        }
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
            for (int j = 0; j < NEXT; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) highest[e / 2] = fmaxf(highest[e / 2], score[i][j][e]);
            if (__any_sync(0xffffffffu, highest[0] > most[i][0] || highest[1] > most[i][1])) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float now = fmaxf(most[i][half], most_of(highest[half]));
                    const float shrink = exp2_of((most[i][half] - now) * scale2);
                    most[i][half] = now, total[i][half] *= shrink;
#pragma unroll
                    for (int n = 0; n < PIECES; ++n) sum[i][n][2 * half] *= shrink, sum[i][n][2 * half + 1] *= shrink;
                }
            }
            float of_tile[2] = {};  // summed up alone: sums of many equal weights err to one side
#pragma unroll
            for (int j = 0; j < NEXT; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    score[i][j][e] = exp2_of((score[i][j][e] - most[i][e / 2]) * scale2);
                    of_tile[e / 2] += score[i][j][e];
                }
            total[i][0] += of_tile[0], total[i][1] += of_tile[1];
        }
#pragma unroll
        for (int j = 0; j < NEXT; j += 2) {
            unsigned weight[TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float(&of)[4] = score[i][j + e / 2];
                    weight[i][e] = packed(q, of[e % 2 * 2], of[e % 2 * 2 + 1]);
                }
#pragma unroll
            for (int n = 0; n < PIECES; n += 2) {
                unsigned value[4];
                load4_transposed(value, here + value_part + 16 * (j * 8 * PITCH + n));
#pragma unroll
                for (int i = 0; i < TILES; ++i) {
                    mma(q, sum[i][n], weight[i], value[0], value[1]);
                    mma(q, sum[i][n + 1], weight[i], value[2], value[3]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    out += head * length * dim, lse += head * length;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = i * 16 + half * 8 + lane / 4, line = first + warp * ROWS + row;
            const float all = sum_of(total[i][half]), part = 1.0f / all;
            if (lane % 4 == 0 && line < length) lse[line] = fmaf(most[i][half], scale, logf(all));
#pragma unroll
            for (int n = 0; n < PIECES; ++n) {
                unsigned* const to = reinterpret_cast<unsigned*>(own + row * PITCH + n) + lane % 4;
                *to = packed(q, sum[i][n][2 * half] * part, sum[i][n][2 * half + 1] * part);
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROWS * (dim / 8); i += 32) {
        const int row = (i + lane) / (dim / 8), piece = (i + lane) % (dim / 8), line = first + warp * ROWS + row;
        if (row < ROWS && line < length) *reinterpret_cast<uint4*>(out + (long long)line * dim + piece * 8) = own[row * PITCH + piece];
    }
}
