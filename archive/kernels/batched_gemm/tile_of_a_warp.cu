/*---
op = "batched_gemm"
note = "small products on tensor cores (mma.sync): a warp makes a tile of up to 64x64 alone, so that no barrier of a block is needed: while it multiplies, its next two factors come by cp.async into its own ring in shared memory; warps stay and pass from tile to tile; results are arranged in the stage just used and stored 16 bytes a lane; a right factor whose lines begin anywhere is copied as it lies in memory, as one range"
when = "k % 8 == 0 and k <= 512 and itemsize(out) == 2 and (n % 8 == 0 or m <= 64 and n <= 64 and k <= 64)"
specialize = ["m", "n", "k", "mi", "nj", "kk", "steps", "tiles_m", "tiles_n", "blocks", "a_line", "stage"]
require = ["WARPS * STAGES * stage_bytes <= 226 * 1024"]

[knobs]
WARPS = [6, 4, 7]
STAGES = [2, 3]

[let]
mi = "min(4, ceil_div(m, 16))"
nj = "2 * (1 + min(1, (n - 1) // 16) + 2 * min(1, (n - 1) // 32))"
kk = "1 + min(1, (k - 1) // 16) + 2 * min(1, (k - 1) // 32)"
steps = "ceil_div(k, 64)"
tiles_m = "ceil_div(m, 16 * mi)"
tiles_n = "ceil_div(n, 8 * nj)"
units = "batch * tiles_m * tiles_n"
even = "1 - min(1, n % 8)"
a_line = "2 * kk + even * (8 - 2 * kk)"
stage = "max(16 * mi * a_line + even * 128 * kk + (1 - even) * (2 * kk * n + 8), (1 - even) * (m * n // 8 + 2))"
stage_bytes = "16 * stage"
blocks = "min(ceil_div(units, WARPS), sms * min(2048 // (32 * WARPS), 226 * 1024 // (WARPS * STAGES * stage_bytes)))"

[[launch]]
entry = "multiply_tiles"
grid = ["blocks"]
block = ["32 * WARPS"]
shared = "WARPS * STAGES * stage_bytes"
args = ["a", "b", "out", "units"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Lines of both factors' tiles have 8 places of 16 bytes, of which AP and nj are used: a power of two. Where the right
// factor is copied as it lies in memory, lines of the left one have no others.
constexpr int LINES = 16 * mi, COLUMNS = 8 * nj, AP = 2 * kk, A_STAGE = LINES * a_line, STAGE = stage;
constexpr bool EVEN = n % 8 == 0;  // whether lines of the right factor and of the result begin at multiples of 16 bytes
constexpr int OF_RIGHT = EVEN ? 0 : int((long long)k * n / 8), OF_RESULT = EVEN ? 0 : int((long long)m * n);
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at(to)), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void load4(unsigned (&to)[4], const uint4* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at(from)) : "memory");
}
__device__ __forceinline__ void load4_transposed(unsigned (&to)[4], const uint4* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at(from)) : "memory");
}

__device__ __forceinline__ void mma(const __nv_bfloat16*, float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(const __half*, float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned pair(const __nv_bfloat16*, float a, float b) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&both);
}
__device__ __forceinline__ unsigned pair(const __half*, float a, float b) {
    const __half2 both = __floats2half2_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&both);
}

// Piece p of line l is at l * 8 + (p ^ l % 8), so that those of eight neighbouring lines lie in different banks.
// Here: of the pieces of lines that a warp copies 32 at a time, the i-th of this lane.
template <int OF_A_LINE> __device__ __forceinline__ int place(int lane, int i) {
    constexpr int TOGETHER = 32 / OF_A_LINE;
    return (i * TOGETHER + lane / OF_A_LINE) * 8 + (lane % OF_A_LINE ^ lane / OF_A_LINE % 8 ^ i * TOGETHER % 8);
}
// The same for the left factor, whose lines may be shorter: then its pieces are arranged among themselves.
__device__ __forceinline__ int left_place(int lane, int i) {
    if constexpr (a_line == 8) return place<AP>(lane, i);
    return i * 32 + lane / AP * AP + (lane % AP ^ lane / 8 % AP);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
multiply_tiles(const a_t* __restrict__ a, const b_t* __restrict__ b, out_t* __restrict__ out, long long units) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint4* const ring = memory + warp * (STAGES * STAGE);
    constexpr int STRIDE = blocks * WARPS;
    // The tile whose factors are asked for next, and their part of k.
    long long ahead = (long long)blockIdx.x * WARPS + warp;
    int ahead_step = 0, ahead_stage = 0;
    const auto fetch = [&] {
        if (ahead < units) {
            const long long product = ahead / (tiles_m * tiles_n);
            const int tile = int(ahead % (tiles_m * tiles_n));
            const int line0 = tile / tiles_n * LINES, column0 = tile % tiles_n * COLUMNS;
            const int depth = ahead_step * 64 + lane % AP * 8, line = line0 + lane / AP;
            const int column = column0 + lane % nj * 8, right_line = ahead_step * 64 + lane / nj;
            const a_t* const left = a + product * ((long long)m * k) + (long long)line * k + depth;
            const b_t* const right = b + product * ((long long)k * n);
            const b_t* const even_right = right + (long long)right_line * n + column;
            uint4* const to = ring + ahead_stage * STAGE;
#pragma unroll
            for (int i = 0; i < LINES * AP / 32; ++i) {
                const bool inside = (k % 64 == 0 || depth < k) && (m % LINES == 0 || line + i * (32 / AP) < m);
                copy16(to + left_place(lane, i), inside ? left + (long long)(i * (32 / AP)) * k : a, inside ? 16 : 0);
            }
#pragma unroll
            for (int i = 0; !EVEN && i < (OF_RIGHT + 31) / 32; ++i) {
                const int index = i * 32 + lane;
                if (index < OF_RIGHT) copy16(to + A_STAGE + index, right + index * 8, 16);
            }
#pragma unroll
            for (int i = 0; EVEN && i < 16 * kk * nj / 32; ++i) {
                const bool inside = (k % 64 == 0 || right_line + i * (32 / nj) < k) && (n % COLUMNS == 0 || column < n);
                const b_t* const from = inside ? even_right + (long long)(i * (32 / nj)) * n : b;
                copy16(to + A_STAGE + place<nj>(lane, i), from, inside ? 16 : 0);
            }
            if (++ahead_step == steps) ahead_step = 0, ahead += STRIDE;
            if (++ahead_stage == STAGES) ahead_stage = 0;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) fetch();
    int turn = 0;
    // Of the two pieces of a line that ldmatrix takes, the lane's, as it is arranged.
    const int own = lane / 16 ^ lane % 8;
    const int own_left = a_line == 8 ? own : lane / 16 ^ lane % 16 * AP / 8 % AP;
#pragma unroll 1
    for (long long unit = (long long)blockIdx.x * WARPS + warp; unit < units; unit += STRIDE) {
        float sum[mi][nj][4] = {};
        uint4* tile = ring;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncwarp();  // other lanes' copies, too; and the stage before this one has been read
            fetch();
            tile = ring + turn * STAGE;
            if (++turn == STAGES) turn = 0;
#pragma unroll
            for (int depth = 0; depth < kk; ++depth) {
                unsigned right[nj / 2][4];
#pragma unroll
                for (int j = 0; j < nj / 2; ++j) {
                    if constexpr (EVEN) {
                        load4_transposed(right[j], tile + A_STAGE + (depth * 16 + lane % 16) * 8 + (own ^ 2 * j));
                    } else {  // two lines of a column at a time; columns beyond the last are those of nobody
                        const unsigned short* const values = reinterpret_cast<const unsigned short*>(tile + A_STAGE);
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            const int line = depth * 16 + e % 2 * 8 + lane % 4 * 2;
                            const unsigned short* const upper = values + line * n + (2 * j + e / 2) * 8 + lane / 4;
                            right[j][e] = k % 16 == 0 || line < k ? upper[0] | unsigned(upper[n]) << 16 : 0;
                        }
                    }
                }
#pragma unroll
                for (int i = 0; i < mi; ++i) {
                    unsigned left[4];
                    load4(left, tile + (i * 16 + lane % 16) * a_line + (own_left ^ 2 * depth));
#pragma unroll
                    for (int j = 0; j < nj; ++j) {
                        mma(a, sum[i][j], left, right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
                    }
                }
            }
        }
        __syncwarp();  // all lanes have read the factors, whose place the results take
        const long long product = unit / (tiles_m * tiles_n);
        if constexpr (EVEN) {
#pragma unroll
            for (int i = 0; i < mi; ++i) {
#pragma unroll
                for (int j = 0; j < nj; ++j) {
                    uint4* const piece = tile + (i * 16 + lane / 4) * 8 + (j ^ lane / 4);
                    unsigned* const upper = reinterpret_cast<unsigned*>(piece) + lane % 4;
                    upper[0] = pair(out, sum[i][j][0], sum[i][j][1]);
                    upper[8 * 8 * 4] = pair(out, sum[i][j][2], sum[i][j][3]);  // 8 lines below
                }
            }
            __syncwarp();
            const int of_product = int(unit % (tiles_m * tiles_n));
            const int line = of_product / tiles_n * LINES + lane / nj;
            const int column = of_product % tiles_n * COLUMNS + lane % nj * 8;
            out_t* const to = out + product * ((long long)m * n) + (long long)line * n + column;
#pragma unroll
            for (int i = 0; i < LINES * nj / 32; ++i) {
                if ((m % LINES == 0 || line + i * (32 / nj) < m) && (n % COLUMNS == 0 || column < n)) {
                    __stcs(reinterpret_cast<uint4*>(to + (long long)(i * (32 / nj)) * n), tile[place<nj>(lane, i)]);
                }
            }
        } else {  // the whole product, as it will lie in memory, from a multiple of 16 bytes on
            const long long begin = product * ((long long)m * n);
            const int off = int(begin % 8);
            out_t* const made = reinterpret_cast<out_t*>(tile);
#pragma unroll
            for (int i = 0; i < mi; ++i) {
#pragma unroll
                for (int j = 0; j < nj; ++j) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int line = i * 16 + e / 2 * 8 + lane / 4, column = j * 8 + lane % 4 * 2 + e % 2;
                        if (line < m && column < n) made[off + line * n + column] = out_t(sum[i][j][e]);
                    }
                }
            }
            __syncwarp();
            out_t* const to = out + (begin - off);
            for (int at = lane * 8; at < off + OF_RESULT; at += 256) {
                if (at >= off && at + 8 <= off + OF_RESULT) {
                    __stcs(reinterpret_cast<uint4*>(to + at), tile[at / 8]);
                } else {
                    for (int e = max(at, off); e < min(at + 8, off + OF_RESULT); ++e) to[e] = made[e];
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}
