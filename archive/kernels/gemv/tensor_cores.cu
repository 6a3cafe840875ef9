/*---
op = "gemv"
note = "persistent blocks stream rows of the matrix through a ring of tiles in shared memory by cp.async, without a break between one set of rows and the next; 16 rows at a time are multiplied on tensor cores (mma.sync), x being the first of 8 columns, and the warps of a block share a tile out along k"
when = "k % 8 == 0 and itemsize(x) == 2"
specialize = ["k", "steps", "tiles", "blocks"]
require = ["DEEP >= 32 * WARPS", "STAGES * DEEP * 34 * PER_SM <= 220 * 1024"]

[knobs]
DEEP = [256, 128, 512]
STAGES = [8, 4, 6, 12]
WARPS = [8, 4]
PER_SM = [2, 1, 3, 4]

[let]
steps = "ceil_div(k, DEEP)"
tiles = "ceil_div(n, 16)"
blocks = "ceil_div(tiles, ceil_div(tiles, sms * PER_SM))"

[[launch]]
entry = "multiply"
grid = ["blocks"]
block = ["32 * WARPS"]
shared = "STAGES * DEEP * 34"
args = ["a", "x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 32 * WARPS, PIECES = DEEP / 8, STAGE = 17 * PIECES;  // 16 rows and x, in pieces of 16 bytes
extern __shared__ uint4 memory[];

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
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

extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
multiply(const a_t* __restrict__ a, const a_t* __restrict__ x, out_t* __restrict__ out, int n) {
    __shared__ float met[2][WARPS][16];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int begin = int((long long)blockIdx.x * tiles / blocks), end = int((blockIdx.x + 1ll) * tiles / blocks);
    const auto fetch = [&](int tile, int step, int slot) {
        if (tile < end) {
            uint4* const to = memory + slot * STAGE;
#pragma unroll
            for (int i = 0; i < (STAGE + THREADS - 1) / THREADS; ++i) {
                const int at = threadIdx.x + i * THREADS, row = at / PIECES, piece = at % PIECES, where = step * DEEP + piece * 8;
                if (row > 16) continue;
                const a_t* const from = row < 16 ? a + (long long)min(tile * 16 + row, n - 1) * k : x;
                const bool inside = k % DEEP == 0 || where < k;
                copy16(to + place(row, piece), from + (inside ? where : 0), inside ? 16 : 0);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    int ahead_tile = begin, ahead_step = 0, slot = 0;
    const auto request = [&](int to) {
        fetch(ahead_tile, ahead_step, to);
        if (++ahead_step == steps) ahead_step = 0, ++ahead_tile;
    };
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) request(i);
    for (int tile = begin; tile < end; ++tile) {
        float sum[4] = {};
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads();
            request(slot == 0 ? STAGES - 1 : slot - 1);
            const uint4* const held = memory + slot * STAGE;
#pragma unroll
            for (int part = warp; part < DEEP / 32; part += WARPS) {
                const uint4 low = held[place(g, part * 4 + q)], high = held[place(g + 8, part * 4 + q)];
                const uint4 b = g == 0 ? held[place(16, part * 4 + q)] : make_uint4(0, 0, 0, 0);
                mma(x, sum, make_uint2(low.x, low.y), make_uint2(high.x, high.y), make_uint2(b.x, b.y));
                mma(x, sum, make_uint2(low.z, low.w), make_uint2(high.z, high.w), make_uint2(b.z, b.w));
            }
            if (++slot == STAGES) slot = 0;
        }
        float(&of)[WARPS][16] = met[tile % 2];
        if (q == 0) of[warp][g] = sum[0], of[warp][g + 8] = sum[2];
        __syncthreads();
        const int row = tile * 16 + threadIdx.x;
        if (threadIdx.x < 16 && row < n) {
            float total = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; ++i) total += of[i][threadIdx.x];
            out[row] = out_t(total);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}
