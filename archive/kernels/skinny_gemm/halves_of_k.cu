/*---
op = "skinny_gemm"
note = "tensor cores (mma.sync) for one block of 64 or 32 rows of the matrix on each multiprocessor: two halves of its warps take turns at k, each with a ring of tiles in shared memory and a barrier of its own, so that one half asks for tiles while the other multiplies; a warp loads its fragments first, then asks for the next tile, and multiplies meanwhile; blocks begin at different places of k, so that they do not ask the same parts of the L2 for x at once"
when = "k % 8 == 0 and itemsize(x) == 2 and m <= 64"
specialize = ["m", "n", "k", "m_tiles", "rows", "steps", "stages"]
require = ["stages >= 2", "stages * stage_bytes >= 128 * m_tiles * (rows + 4)"]

[knobs]
HALVES = [2, 1]
STAGES = [8, 4, 6]
DEEP = [128, 256]
APART = [1, 0, 7]

[let]
m_tiles = "ceil_div(m, 8)"
rows = "32 + 32 * min(1, n // 6144)"
stage_bytes = "2 * DEEP * (rows + 8 * m_tiles)"
stages = "min(STAGES, 226 * 1024 // (HALVES * stage_bytes))"
steps = "ceil_div(k, DEEP)"

[[launch]]
entry = "multiply"
grid = ["ceil_div(n, rows)"]
block = ["256 * HALVES"]
shared = "HALVES * stages * stage_bytes"
args = ["x", "weight", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Of a half: 256 threads, two groups of warps along the rows and four along the depth of a tile. A piece is 16 bytes.
constexpr int PIECES = DEEP / 8, COLUMNS = 8 * m_tiles, STAGE = PIECES * (rows + COLUMNS), TILES = rows / 32;
constexpr int ROUND = 256 / PIECES, W_LOADS = rows / ROUND, X_LOADS = (COLUMNS + ROUND - 1) / ROUND, PARTS = DEEP / 128;
constexpr int EARLY = m_tiles < 4 ? m_tiles : 4;  // pieces of x loaded before others are asked for: registers are few

extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at(to)), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait(unsigned barrier, int phase) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"(barrier), "r"(phase) : "memory");
}

// Which values of k a lane holds is the same for both sides, so any order of them will do.
__device__ __forceinline__ void mma(const __nv_bfloat16*, float (&d)[4], unsigned a0, unsigned a1, unsigned a2,
                                    unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(const __half*, float (&d)[4], unsigned a0, unsigned a1, unsigned a2,
                                    unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Neighbouring rows use different halves of 128 bytes, so that the lanes of a load meet no bank twice.
__device__ __forceinline__ int place(int row, int piece) { return row * PIECES + (piece ^ row % 2 * 4); }

extern "C" __global__ void __launch_bounds__(256 * HALVES, 1)
multiply(const x_t* __restrict__ x, const x_t* __restrict__ matrix, out_t* __restrict__ out) {
    __shared__ alignas(8) unsigned long long barriers[HALVES];  // of the eight warps of each half
    if (threadIdx.x < HALVES) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 8;\nfence.mbarrier_init.release.cluster;"
                     ::"r"(at(&barriers[threadIdx.x])) : "memory");
    }
    __syncthreads();
    const int half = threadIdx.x / 256, thread = threadIdx.x % 256, first = blockIdx.x * rows;
    const int own_piece = thread % PIECES, own_row = thread / PIECES;
    const int count = (steps - half + HALVES - 1) / HALVES;  // of steps of this half: every so many-th
    const int shift = blockIdx.x * APART % steps;  // where in k the block begins
    uint4* const ring = memory + half * (stages * STAGE);
    const x_t* const from_matrix = matrix + (long long)(first + own_row) * k + own_piece * 8;
    const x_t* const from_x = x + own_row * k + own_piece * 8;
    // From a thread's first row to its next ones; beyond the last row the last again, for sums that nobody stores.
    const auto of_matrix = [&](int i) {
        return n % rows == 0 ? i * ROUND * k : (min(i * ROUND, int(n - 1 - first) - own_row)) * k;
    };
    const auto of_x = [&](int i) { return m % 8 == 0 ? i * ROUND * k : (min(i * ROUND, int(m) - 1 - own_row)) * k; };
    const auto fetch = [&](int turn) {
        if (turn < count) {
            uint4* const to = ring + turn % stages * STAGE + place(own_row, own_piece);
            const int step = turn * HALVES + half + shift;
            int where = (step < steps ? step : step - steps) * DEEP;
            const int bytes = k % DEEP == 0 || where + own_piece * 8 < k ? 16 : 0;
            if (bytes == 0) where = -own_piece * 8;
#pragma unroll
            for (int i = 0; i < W_LOADS; ++i) {
                copy16(to + i * (ROUND * PIECES), from_matrix + where + of_matrix(i), bytes);
            }
#pragma unroll
            for (int i = 0; i < X_LOADS; ++i) {
                if (COLUMNS % ROUND != 0 && own_row + i * ROUND >= COLUMNS) break;
                copy16(to + (rows + i * ROUND) * PIECES, from_x + where + of_x(i), bytes);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int turn = 0; turn < stages - 1; ++turn) fetch(turn);

    const int warp = thread / 32, lane = thread % 32, g = lane / 4, q = lane % 4;
    const int base = warp % 2 * (16 * TILES), group = warp / 2;
    const unsigned barrier = at(&barriers[half]);
    float sum[TILES][m_tiles][4] = {};
#pragma unroll 1
    for (int turn = 0; turn < count; ++turn) {
        asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
        __syncwarp();
        if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
        wait(barrier, turn % 2);
        const uint4* const tile = ring + turn % stages * STAGE;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const int piece = (part * 4 + group) * 4 + q;
            uint4 low[TILES], high[TILES], b[m_tiles];
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                low[i] = tile[place(base + 16 * i + g, piece)];
                high[i] = tile[place(base + 16 * i + g + 8, piece)];
            }
#pragma unroll
            for (int c = 0; c < EARLY; ++c) b[c] = tile[place(rows + 8 * c + g, piece)];
            if (part == 0) fetch(turn + stages - 1);  // into the stage of the turn before, which all have left
#pragma unroll
            for (int c = EARLY; c < m_tiles; ++c) b[c] = tile[place(rows + 8 * c + g, piece)];
#pragma unroll
            for (int c = 0; c < m_tiles; ++c) {
#pragma unroll
                for (int i = 0; i < TILES; ++i) {
                    mma(x, sum[i][c], low[i].x, high[i].x, low[i].y, high[i].y, b[c].x, b[c].y);
                    mma(x, sum[i][c], low[i].z, high[i].z, low[i].w, high[i].w, b[c].z, b[c].w);
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();

    constexpr int STRIDE = rows + 4, GROUPS = 4 * HALVES;
    float* const met = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
#pragma unroll
        for (int c = 0; c < m_tiles; ++c) {
            float* const to = met + ((half * 4 + group) * COLUMNS + 8 * c + 2 * q) * STRIDE + base + 16 * i + g;
            to[0] = sum[i][c][0], to[STRIDE] = sum[i][c][1], to[8] = sum[i][c][2], to[STRIDE + 8] = sum[i][c][3];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < COLUMNS * rows; i += 256 * HALVES) {
        const int column = i / rows, row = i % rows;
        float total = 0.0f;
#pragma unroll
        for (int of = 0; of < GROUPS; ++of) total += met[(of * COLUMNS + column) * STRIDE + row];
        if (column < m && first + row < n) out[(long long)column * n + first + row] = out_t(total);
    }
}
