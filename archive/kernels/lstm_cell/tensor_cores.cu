/*---
op = "lstm_cell"
note = "both products on tensor cores (mma.sync) in one launch: tiles of x and then of h, and of the weights, come by cp.async through a ring in shared memory; a warp's columns are the gates of the same 8 units, so that each thread has all gates of its units in registers and finishes them there"
when = "input % 8 == 0 and hidden % 8 == 0 and itemsize(x) == 2"
specialize = ["input", "hidden", "warps_m", "warps_n"]
require = ["STAGES * stage_bytes <= 226 * 1024"]

[knobs]
WARPS_M = [2, 1]
WARPS_N = [4, 2]
STAGES = [4, 3, 6]

[let]
warps_m = "1 + min(WARPS_M - 1, (batch - 1) // 64)"
warps_n = "max(1, WARPS_N * warps_m // WARPS_M)"
stage_bytes = "128 * (64 * warps_m + 4 * 8 * warps_n)"

[[launch]]
entry = "cell"
grid = ["ceil_div(batch, 64 * warps_m)", "ceil_div(hidden, 8 * warps_n)"]
block = ["32 * warps_m * warps_n"]
shared = "STAGES * stage_bytes"
args = ["x", "h", "c", "w_ih", "w_hh", "b_ih", "b_hh", "h_next", "c_next", "batch"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int GATES = 4, THREADS = 32 * warps_m * warps_n, DEEP = 64, PIECES = 8;  // 8 values are 16 bytes
constexpr int ROWS = 64 * warps_m, UNITS = 8 * warps_n, COLUMNS = GATES * UNITS, STAGE = (ROWS + COLUMNS) * PIECES;
constexpr int OF_X = (input + DEEP - 1) / DEEP, STEPS = OF_X + (hidden + DEEP - 1) / DEEP;
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at(to)), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void load4(unsigned (&to)[4], const uint4* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at(from)) : "memory");
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

// The pieces of eight neighbouring rows lie in different banks.
__device__ __forceinline__ int place(int row, int piece) { return row * PIECES + (piece ^ row % 8); }

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ __forceinline__ float tanh_of(float x) {  // 1 - 2 / (exp(2x) + 1) has too few digits near 0
    return fabsf(x) < 0.25f ? tanhf(x) : 1.0f - 2.0f / (__expf(2.0f * x) + 1.0f);
}

struct alignas(4) Two { x_t at[2]; };

extern "C" __global__ void __launch_bounds__(THREADS)
cell(const x_t* __restrict__ x, const x_t* __restrict__ h, const x_t* __restrict__ c, const x_t* __restrict__ w_ih,
     const x_t* __restrict__ w_hh, const x_t* __restrict__ b_ih, const x_t* __restrict__ b_hh, x_t* __restrict__ h_next,
     x_t* __restrict__ c_next, int batch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp % warps_m, warp_n = warp / warps_m;
    const int first_row = blockIdx.x * ROWS, first_unit = blockIdx.y * UNITS;
    // Row r of the weights' tile: gate r / 8 % GATES of unit r % 8 of the warps in column r / (8 * GATES).
    const auto fetch = [&](int step) {
        if (step < STEPS) {
            uint4* const to = memory + step % STAGES * STAGE;
            const bool second = step >= OF_X;
            const int depth = second ? hidden : input, begin = (second ? step - OF_X : step) * DEEP;
            const x_t* const left = second ? h : x;
            const x_t* const right = second ? w_hh : w_ih;
#pragma unroll
            for (int i = 0; i < (STAGE + THREADS - 1) / THREADS; ++i) {
                const int index = threadIdx.x + i * THREADS, row = index / PIECES, piece = index % PIECES;
                if (STAGE % THREADS != 0 && index >= STAGE) continue;
                const int k = begin + piece * 8, column = row - ROWS;
                const int unit = min(first_unit + column / (8 * GATES) * 8 + column % 8, hidden - 1);
                const long long line = row < ROWS ? min(first_row + row, batch - 1) : column / 8 % GATES * hidden + unit;
                copy16(to + place(row, piece), (row < ROWS ? left : right) + line * depth + (k < depth ? k : 0), k < depth ? 16 : 0);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    float sum[4][4][4] = {};  // four times 16 rows, four gates
    const auto multiply = [&](const uint4* tile) {
        const uint4* const weights = tile + (ROWS + warp_n * 8 * GATES) * PIECES;
        float part_sum[4][GATES][4] = {};  // tensor cores cut off the last bits of a sum at each addition: keep sums short
#pragma unroll
        for (int k = 0; k < DEEP / 16; k += 2) {
            unsigned a[2][4][4];
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int row = warp_m * 64 + i * 16 + lane % 16;
                    load4(a[part][i], tile + place(row, (k + part) * 2 + lane / 16));
                }
            }
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) {
                unsigned b[4];
                load4(b, weights + place(gate * 8 + lane % 8, k * 2 + lane / 8));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    mma(x, part_sum[i][gate], a[0][i], b[0], b[1]);
                    mma(x, part_sum[i][gate], a[1][i], b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) {
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][gate][e] += part_sum[i][gate][e];
            }
        }
    };
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fetch(step + STAGES - 1);
        const uint4* const tile = memory + step % STAGES * STAGE;
        multiply(tile);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    const int unit = first_unit + warp_n * 8 + lane % 4 * 2;
    if (unit >= hidden) return;  // hidden is even
    float bias[4][2];
#pragma unroll
    for (int gate = 0; gate < 4; ++gate) {
#pragma unroll
        for (int e = 0; e < 2; ++e) bias[gate][e] = float(b_ih[gate * hidden + unit + e]) + float(b_hh[gate * hidden + unit + e]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + warp_m * 64 + i * 16 + half * 8 + lane / 4;
            if (row >= batch) continue;
            const long long here = (long long)row * hidden + unit;
            const Two old = *reinterpret_cast<const Two*>(c + here);
            Two made, cells;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float gate[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) gate[j] = sum[i][j][half * 2 + e] + bias[j][e];
                const float kept = sigmoid_of(gate[1]) * float(old.at[e]), next = kept + sigmoid_of(gate[0]) * tanh_of(gate[2]);
                cells.at[e] = x_t(next);
                made.at[e] = x_t(sigmoid_of(gate[3]) * tanh_of(next));
            }
            *reinterpret_cast<Two*>(c_next + here) = cells;
            *reinterpret_cast<Two*>(h_next + here) = made;
        }
    }
}
