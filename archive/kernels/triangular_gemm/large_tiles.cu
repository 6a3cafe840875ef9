/*---
op = "triangular_gemm"
note = "tensor cores (mma.sync) with 64 x 64 results a warp, so that each line loaded from shared memory takes part in 64 products; two blocks of four warps, or one of eight, on a multiprocessor; tiles of both factors, 64 deep, by cp.async through a ring in shared memory; blocks in bands for the L2 cache; wide stores; what lies above the diagonal is neither read nor multiplied"
when = "rows % 8 == 0 and cols % 8 == 0"
dtypes = ["bfloat16", "float16"]
specialize = ["lines", "columns", "depth", "stages"]

[knobs]
WARPS = [4, 8]
STAGES = [3, 2, 4]
BAND = [8, 4, 16]

[let]
lines = "rows"
columns = "cols"
depth = "rows"
stage_bytes = "128 * (128 + 32 * WARPS)"
stages = "min(STAGES, 28672 * WARPS // stage_bytes)"

[[launch]]
entry = "multiply"
grid = ["ceil_div(lines, 128) * ceil_div(columns, 32 * WARPS)"]
block = ["32 * WARPS"]
shared = "stages * stage_bytes"
args = ["a", "b", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = a_t;
constexpr bool ALONG = true;  // whether the right factor's lines run along the sum
constexpr int TM = 128, TN = 32 * WARPS, EACH = 4 * WARPS, LEFT = TM * 128, STAGE = LEFT + TN * 128;  // STAGE in bytes; a line of 64 terms has 128
constexpr int PIECES = TN / 8;

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(unsigned to, const T* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

template <bool TRANS> __device__ __forceinline__ void load4(unsigned (&to)[4], unsigned from) {
    if constexpr (TRANS) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
    }
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

extern "C" __global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
multiply(const T* __restrict__ left, const T* __restrict__ right, T* __restrict__ out) {
    extern __shared__ uint4 memory[];
    const unsigned start = at(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp % 2, warp_n = warp / 2;
    // Bands of tiles, so that blocks of the same time share lines of both factors in the L2 cache.
    constexpr int LINE_TILES = (lines + TM - 1) / TM, COLUMN_TILES = (columns + TN - 1) / TN;
    const int band = blockIdx.x / (BAND * COLUMN_TILES) * BAND, rest = blockIdx.x % (BAND * COLUMN_TILES), tall = min(BAND, LINE_TILES - band);
    const int line0 = (LINE_TILES - 1 - band - rest % tall) * TM, column0 = rest / tall * TN;
    const int count = (min(line0 + TM, lines) + 63) / 64;
    const int own_line = threadIdx.x / 8, own_piece = threadIdx.x % 8;
    const unsigned own = own_line * 128 + (own_piece ^ own_line % 8) * 16;  // pieces of eight neighbouring lines lie in different banks
    const auto fetch = [&](int step) {
        if (step < count) {
            const unsigned to = start + step % stages * STAGE;
            const int k = step * 64 + own_piece * 8;
#pragma unroll
            for (int i = 0; i < TM / EACH; ++i) {
                const int line = line0 + own_line + i * EACH;
                const int bytes = k < depth ? 2 * min(max(line - k + 1, 0), 8) : 0;
                copy16(to + own + i * EACH * 128, left + (long long)(lines % TM == 0 ? line : min(line, lines - 1)) * depth + (bytes > 0 ? k : 0), bytes);
            }
#pragma unroll
            for (int i = 0; i < TN / EACH; ++i) {
                if constexpr (ALONG) {
                    const int index = threadIdx.x + i * 32 * WARPS, line = index / PIECES, piece = index % PIECES;
                    const bool inside = (depth % 64 == 0 || step * 64 + line < depth) && (columns % TN == 0 || column0 + piece * 8 < columns);
                    const T* const from = right + (inside ? (long long)(step * 64 + line) * columns + column0 + piece * 8 : 0);
                    copy16(to + LEFT + (line * PIECES + (piece ^ line % 8)) * 16, from, inside ? 16 : 0);
                } else {
                    const int column = column0 + own_line + i * EACH;
                    const bool inside = depth % 64 == 0 || k < depth;
                    copy16(to + LEFT + own + i * EACH * 128, right + (long long)(columns % TN == 0 ? column : min(column, columns - 1)) * depth + (inside ? k : 0), inside ? 16 : 0);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int step = 0; step < stages - 1; ++step) fetch(step);
    const unsigned left_part = (warp_m * 64 + lane % 16) * 128, left_piece = (lane / 16 ^ lane % 8) * 16;
    const unsigned right_part = LEFT + (ALONG ? lane % 16 * PIECES * 16 : (warp_n * 64 + lane / 16 * 8 + lane % 8) * 128);
    const unsigned right_piece = ALONG ? (warp_n * 8 + (lane / 16 ^ lane % 8)) * 16 : (lane / 8 % 2 ^ lane % 8) * 16;
    float sum[4][8][4] = {};
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
        __syncthreads();
        fetch(step + stages - 1);
        const unsigned tile = start + step % stages * STAGE;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            unsigned a[4][4], b[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) load4<false>(a[i], tile + left_part + i * 2048 + (left_piece ^ k * 32));
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if constexpr (ALONG) load4<true>(b[j], tile + right_part + k * 16 * PIECES * 16 + (right_piece ^ j * 32));
                else load4<false>(b[j], tile + right_part + j * 2048 + (right_piece ^ k * 32));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 8; ++j) mma(left, sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    struct alignas(4) Two { T at[2]; };
    constexpr int PITCH = 72;
    T* const staged = reinterpret_cast<T*>(memory) + warp * 64 * PITCH;  // results go through shared memory for wide stores
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                Two made;
                made.at[0] = T(sum[i][j][2 * half]), made.at[1] = T(sum[i][j][2 * half + 1]);
                *reinterpret_cast<Two*>(staged + (i * 16 + half * 8 + lane / 4) * PITCH + j * 8 + lane % 4 * 2) = made;
            }
        }
    }
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
        const int row = i * 4 + lane / 8, line = line0 + warp_m * 64 + row, column = column0 + warp_n * 64 + lane % 8 * 8;
        if (line < lines && column < columns) {
            *reinterpret_cast<uint4*>(out + (long long)line * columns + column) = *reinterpret_cast<const uint4*>(staged + row * PITCH + lane % 8 * 8);
        }
    }
}
