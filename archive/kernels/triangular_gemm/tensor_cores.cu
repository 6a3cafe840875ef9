/*---
op = "triangular_gemm"
note = "tensor cores (mma.sync): tiles of both factors, 64 deep, come by cp.async through a ring in shared memory and go by ldmatrix into the fragments of eight warps, two along the rows and four along the columns, so that a product needs few loads; what lies above the diagonal is neither multiplied nor read: the copies end there and fill up with zeros"
when = "rows % 8 == 0 and cols % 8 == 0 and itemsize(out) == 2"
specialize = ["lines", "columns", "depth", "tm", "tn", "steps", "stages"]

[knobs]
TM = [128, 64]
TN = [128, 64]
STAGES = [3, 4, 5]

[let]
lines = "rows"
columns = "cols"
depth = "rows"
tm = "min(TM, 64 + 64 * min(1, (lines - 1) // 64))"
tn = "min(TN, 64 + 64 * min(1, (columns - 1) // 64))"
steps = "ceil_div(depth, 64)"
stages = "min(STAGES, max(2, steps))"
stage_bytes = "128 * (tm + tn)"

[[launch]]
entry = "triangular_gemm_tiles"
grid = ["ceil_div(lines, tm)", "ceil_div(columns, tn)", 1]
block = [256]
shared = "stages * stage_bytes"
args = ["a", "b", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = a_t;
constexpr int MI = tm / 32, NJ = tn / 32, A_STAGE = tm * 8, STAGE = (tm + tn) * 8;  // of 16 bytes; a warp has MI x NJ fragments
constexpr bool ALONG = true;  // whether the right factor's lines run along the sum
constexpr int B_PIECES = ALONG ? tn / 8 : 8;
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at(to)), "l"(from), "r"(bytes) : "memory");
}

// Eight values of a line of the right factor, by as wide copies as its length allows; zeros beyond its end.
__device__ __forceinline__ void copy_piece(uint4* to, const T* right, bool known, long long line, int column) {
    if constexpr (columns % 8 == 0) {
        const bool inside = known && column < columns;
        copy16(to, right + (inside ? line * columns + column : 0), inside ? 16 : 0);
    } else if constexpr (columns % 4 == 0) {
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            const bool inside = known && column + e < columns;
            const T* const from = right + (inside ? line * columns + column + e : 0);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at(to) + 2 * e), "l"(from), "r"(inside ? 8 : 0) : "memory");
        }
    } else {
        union { uint4 raw; T at[8]; } piece;
        piece.raw = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            if (known && column + e < columns) piece.at[e] = right[line * columns + column + e];
        }
        *to = piece.raw;
    }
}

template <bool TRANS> __device__ __forceinline__ void load4(unsigned (&to)[4], const uint4* from) {
    if constexpr (TRANS) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at(from)) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at(from)) : "memory");
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

// The pieces of eight neighbouring lines lie in different banks.
template <int PIECES> __device__ __forceinline__ int place(int line, int piece) { return line * PIECES + (piece ^ line % 8); }

extern "C" __global__ void __launch_bounds__(256, ALONG && tm * tn == 16384 && steps > 4 ? 1 : 2)
triangular_gemm_tiles(const T* __restrict__ a_all, const T* __restrict__ b_all, T* __restrict__ out) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp % 2, warp_n = warp / 2;
    const int line0 = blockIdx.x * tm, column0 = blockIdx.y * tn;
    const T* const left = a_all;
    const T* const right = b_all;
    T* const to_out = out;
    const int count = min(steps, (min(line0 + tm, lines) + 63) / 64);
    const auto fetch = [&](int step) {
        if (step < count) {
            uint4* const to = memory + step % stages * STAGE;
#pragma unroll
            for (int i = 0; i < A_STAGE / 256; ++i) {
                const int index = threadIdx.x + i * 256, line = line0 + index / 8, k = step * 64 + index % 8 * 8;
                const int bytes = k < depth ? 2 * min(max(line - k + 1, 0), 8) : 0;
                copy16(to + place<8>(index / 8, index % 8), left + (long long)min(line, lines - 1) * depth + (bytes > 0 ? k : 0), bytes);
            }
#pragma unroll
            for (int i = 0; i < tn * 8 / 256; ++i) {
                const int index = threadIdx.x + i * 256, line = index / B_PIECES, piece = index % B_PIECES;
                if constexpr (ALONG) {
                    const int k = step * 64 + line, column = column0 + piece * 8;
                    copy_piece(to + A_STAGE + place<B_PIECES>(line, piece), right, k < depth, k, column);
                } else {
                    const int k = step * 64 + piece * 8, column = min(column0 + line, columns - 1);
                    copy16(to + A_STAGE + place<8>(line, piece), right + (long long)column * depth + (k < depth ? k : 0), k < depth ? 16 : 0);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int step = 0; step < stages - 1; ++step) fetch(step);
    float sum[MI][NJ][4] = {};
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
        __syncthreads();
        fetch(step + stages - 1);
        const uint4* const a_tile = memory + step % stages * STAGE;
        const uint4* const b_tile = a_tile + A_STAGE;
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            unsigned b[NJ][4];
#pragma unroll
            for (int j = 0; j < NJ; ++j) {
                const int column = warp_n * (tn / 4) + j * 8;
                if constexpr (ALONG) load4<true>(b[j], b_tile + place<B_PIECES>(k * 16 + lane, column / 8));
                else load4<false>(b[j], b_tile + place<8>(column + lane % 8, k * 2 + lane / 8));
            }
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
                for (int i = 0; i < MI; ++i) {
                    unsigned a[4];
                    load4<false>(a, a_tile + place<8>(warp_m * (tm / 2) + i * 16 + lane % 16, (k + part) * 2 + lane / 16));
#pragma unroll
                    for (int j = 0; j < NJ; ++j) mma(left, sum[i][j], a, b[j][2 * part], b[j][2 * part + 1]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    struct alignas(4) Two { T at[2]; };
#pragma unroll
    for (int j = 0; j < NJ; ++j) {
        const int column = column0 + warp_n * (tn / 4) + j * 8 + lane % 4 * 2;
        if (column >= columns) continue;
#pragma unroll
        for (int i = 0; i < MI; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = line0 + warp_m * (tm / 2) + i * 16 + half * 8 + lane / 4;
                if (line >= lines) continue;
                Two made;
                made.at[0] = T(sum[i][j][2 * half + 0]), made.at[1] = T(sum[i][j][2 * half + 1]);
                T* const here = to_out + (long long)line * columns + column;
                if constexpr (columns % 2 == 0) *reinterpret_cast<Two*>(here) = made;
                else {
                    here[0] = made.at[0];
                    if (column + 1 < columns) here[1] = made.at[1];
                }
            }
        }
    }
}
