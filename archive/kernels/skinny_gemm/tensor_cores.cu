/*---
op = "skinny_gemm"
note = "tensor cores (mma.sync): rows of the matrix are the 16 rows of a product and rows of x its 8 columns; both come by cp.async through a ring of tiles in shared memory, so that many kilobytes are on the way; the warps of a block share a tile out along k and add up at the end; where rows are few, blocks share k out, too, and a second launch adds their sums in a fixed order"
when = "k % 8 == 0 and itemsize(x) == 2 and m <= 64"
specialize = ["k", "m_tiles", "rows", "of_warp", "groups", "splits", "steps", "own_steps"]
require = ["groups * 32 <= DEEP", "STAGES * stage_bytes <= 226 * 1024", "rows % of_warp == 0", "STAGES * stage_bytes >= 4 * groups * 8 * m_tiles * (rows + 4)"]

[knobs]
ROWS = [32, 16, 64]
DEEP = [128, 256]
STAGES = [6, 4, 5, 8]
WARPS = [8, 4]

[let]
wide = "min(1, (m - 1) // 16)"
rows = "ROWS * (1 + wide)"
of_warp = "16 * (1 + wide)"
groups = "WARPS * of_warp // rows"
m_tiles = "ceil_div(m, 8)"
stage_bytes = "2 * DEEP * (rows + 8 * m_tiles)"
tiles = "ceil_div(n, rows)"
steps = "ceil_div(k, DEEP)"
wanted = "max(1, min(steps // 8, sms // tiles))"
own_steps = "ceil_div(steps, wanted)"
splits = "ceil_div(steps, own_steps)"
several = "min(1, splits - 1)"

[workspace]
sums = { shape = ["splits * several", "m * several", "n * several"], dtype = "float32" }

[[launch]]
entry = "multiply"
grid = ["tiles", "splits"]
block = ["32 * WARPS"]
shared = "STAGES * stage_bytes"
args = ["x", "weight", "out", "sums", "m", "n"]

[[launch]]
entry = "add_up"
grid = ["several * ceil_div(m * n, 256)"]
block = [256]
args = ["sums", "out", "m * n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 32 * WARPS, PIECES = DEEP / 8, COLUMNS = 8 * m_tiles;  // a piece is 16 bytes
constexpr int TILES = of_warp / 16, STAGE = PIECES * (rows + COLUMNS);

extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at(to)), "l"(from), "r"(bytes) : "memory");
}

// Which values of k a lane holds is the same for both sides, so any order of them will do.
__device__ __forceinline__ void mma(const __nv_bfloat16*, float (&d)[4], const uint2& low, const uint2& high, const uint2& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void mma(const __half*, float (&d)[4], const uint2& low, const uint2& high, const uint2& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b.x), "r"(b.y));
}

// Neighbouring rows use different halves of 128 bytes, so that the lanes of a load meet no bank twice.
__device__ __forceinline__ int place(int row, int piece) { return row * PIECES + (piece ^ row % 2 * 4); }

// Row i of a tile is one of the matrix's, and after those one of x's; beyond the last the last again, which nobody stores.
__device__ __forceinline__ const x_t* row_at(const x_t* x, const x_t* matrix, int i, int first, int m, int n) {
    return i < rows ? matrix + (long long)min(first + i, n - 1) * k : x + (long long)min(i - rows, m - 1) * k;
}

extern "C" __global__ void __launch_bounds__(THREADS)
multiply(const x_t* __restrict__ x, const x_t* __restrict__ matrix, out_t* __restrict__ out, float* __restrict__ sums, int m, int n) {
    constexpr int LOADS = (STAGE + THREADS - 1) / THREADS, ROUND = THREADS / PIECES;
    const int first = blockIdx.x * rows, own_piece = threadIdx.x % PIECES, own_row = threadIdx.x / PIECES;
    const int begin = blockIdx.y * own_steps, count = min(own_steps, steps - begin);
    const x_t* from[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) from[i] = row_at(x, matrix, min(own_row + i * ROUND, rows + COLUMNS - 1), first, m, n);
    const auto fetch = [&](int step) {
        if (step < count) {
            uint4* const to = memory + step % STAGES * STAGE;
            const int where = (begin + step) * DEEP + own_piece * 8;
            const int bytes = k % DEEP == 0 || where < k ? 16 : 0;
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                const int row = own_row + i * ROUND;
                if (STAGE % THREADS == 0 || row < rows + COLUMNS) copy16(to + place(row, own_piece), from[i] + (bytes > 0 ? where : 0), bytes);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int base = warp % (rows / of_warp) * of_warp, group = warp / (rows / of_warp);
    float sum[TILES][m_tiles][4] = {};
    for (int step = 0; step < count; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fetch(step + STAGES - 1);
        const uint4* const tile = memory + step % STAGES * STAGE;
#pragma unroll
        for (int part = 0; part < DEEP / 32; part += groups) {
            const int piece = (part + group) * 4 + q;
            if (DEEP / 32 % groups != 0 && part + group >= DEEP / 32) continue;
            uint4 low[TILES], high[TILES];
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                low[i] = tile[place(base + 16 * i + g, piece)];
                high[i] = tile[place(base + 16 * i + g + 8, piece)];
            }
#pragma unroll
            for (int c = 0; c < m_tiles; ++c) {
                const uint4 b = tile[place(rows + 8 * c + g, piece)];
#pragma unroll
                for (int i = 0; i < TILES; ++i) {
                    mma(x, sum[i][c], make_uint2(low[i].x, low[i].y), make_uint2(high[i].x, high[i].y), make_uint2(b.x, b.y));
                    mma(x, sum[i][c], make_uint2(low[i].z, low[i].w), make_uint2(high[i].z, high[i].w), make_uint2(b.z, b.w));
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();

    constexpr int STRIDE = rows + 4;
    float* const met = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
#pragma unroll
        for (int c = 0; c < m_tiles; ++c) {
            float* const to = met + (group * COLUMNS + 8 * c + 2 * q) * STRIDE + base + 16 * i + g;
            to[0] = sum[i][c][0], to[STRIDE] = sum[i][c][1], to[8] = sum[i][c][2], to[STRIDE + 8] = sum[i][c][3];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < COLUMNS * rows; i += THREADS) {
        const int column = i / rows, row = i % rows;
        float total = 0.0f;
#pragma unroll
        for (int of = 0; of < groups; ++of) total += met[(of * COLUMNS + column) * STRIDE + row];
        if (column >= m || first + row >= n) continue;
        if constexpr (splits == 1) out[(long long)column * n + first + row] = out_t(total);
        else sums[((long long)blockIdx.y * m + column) * n + first + row] = total;
    }
}

extern "C" __global__ void __launch_bounds__(256) add_up(const float* __restrict__ sums, out_t* __restrict__ out, long long count) {
    const long long own = blockIdx.x * 256ll + threadIdx.x;
    if (own >= count) return;
    float total = 0.0f;
#pragma unroll
    for (int split = 0; split < splits; ++split) total += sums[split * count + own];
    out[own] = out_t(total);
}
