/*---
op = "gru"
note = "what comes from x for all steps by one product on tensor cores; then a cluster of 8 blocks walks through time with a few sequences and all the units: each block holds the weights of its units as fragments, in registers and what does not fit in shared memory, and sends its part of h by st.async to the shared memory of the others, each value as a sum of TERMS values of the inputs' dtype; a block waits only at its own mbarrier, for the bytes of the whole h"
when = "input % 8 == 0 and hidden % 8 == 0 and itemsize(x) == 2"
specialize = ["time", "batch", "input", "hidden", "rows", "units", "each", "across", "deep", "kept", "stored", "tile", "columns", "line", "height", "threads"]

[knobs]
TERMS = [3, 2]
SPLIT = [2, 4]
WARPS = [8, 16]
SIGNAL = [1, 0]
STAGES = [4, 3]

[let]
rows = "time * batch"
units = "8 * ceil_div(hidden, 64)"
strips = "ceil_div(3 * units, 16)"
each = "ceil_div(strips, WARPS // SPLIT)"
across = "ceil_div(strips, each)"
deep = "ceil_div(ceil_div(hidden, 32), SPLIT)"
threads = "32 * across * SPLIT"
tile = "min(8, ceil_div(batch, max(1, sms // 8)))"
columns = "8 * ceil_div(TERMS * tile, 8)"
line = "32 * (deep * SPLIT + 1 - deep * SPLIT % 2)"
height = "16 * each * across + 4"
kept = "min(deep, max(0, min(255, 2048 // (across * SPLIT)) - 88 - 4 * each) // (8 * each))"
stored = "across * SPLIT * (deep - kept) * each * 1024"

[workspace]
pre = { shape = ["rows", "hidden", 3], dtype = "float32" }

[[launch]]
entry = "part_of_x"
grid = ["ceil_div(rows, 128)", "ceil_div(3 * hidden, 64)"]
block = [256]
shared = "STAGES * 24576"
args = ["x", "w_ih", "b_ih", "b_hh", "pre"]

[[launch]]
entry = "walk"
grid = ["8 * ceil_div(batch, tile)"]
block = ["threads"]
shared = "4 * columns * line + stored + 4 * SPLIT * columns * height + 2 * threads * TERMS"
args = ["pre", "h0", "w_hh", "b_hh", "out", "h_n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int KINDS = 3, CLUSTER = 8;  // gates, and blocks that share sequences
constexpr int STRIDE = KINDS * hidden;  // of `pre`, where the gates of a unit lie side by side
constexpr int STAGE = 128 * 8 + 64 * 8;  // of 16 bytes: a tile of 128 rows and one of 64, of 64 terms
#define OF_X static_cast<const x_t*>(nullptr)  // selects an overload
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void load4(unsigned (&to)[4], const uint4* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at(from)) : "memory");
}
__device__ __forceinline__ void mma(const __nv_bfloat16*, float (&d)[4], unsigned a0, unsigned a1, unsigned a2,
                                    unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(const __half*, float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                    unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A tile of 128 x 64 per block and of 32 x 32 per warp; column c is gate c % KINDS of unit c / KINDS.
extern "C" __global__ void __launch_bounds__(256)
part_of_x(const x_t* __restrict__ x, const x_t* __restrict__ w_ih, const x_t* __restrict__ b_ih,
          const x_t* __restrict__ b_hh, float* __restrict__ pre) {
    const int row0 = blockIdx.x * 128, column0 = blockIdx.y * 64, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int own_row = warp % 4 * 32, own_column = warp / 4 * 32, line = threadIdx.x / 8, piece = threadIdx.x % 8;
    constexpr int STEPS = (input + 63) / 64;
    const auto fetch = [&](int step) {
        const int k = step * 64 + piece * 8, bytes = k < input ? 16 : 0;
        uint4* const to = memory + step % STAGES * STAGE + line * 8 + (piece ^ line % 8);
        if (step < STEPS) {
#pragma unroll
            for (int i = 0; i < 6; ++i) {  // 32 lines at a time: four times of x, and twice of the weights
                const int row = min(row0 + line + 32 * i, rows - 1);
                const int column = min(column0 + line + 32 * max(i - 4, 0), STRIDE - 1);
                const x_t* const from = i < 4 ? x + (long long)row * input
                                              : w_ih + (long long)(column % KINDS * hidden + column / KINDS) * input;
                asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                             ::"r"(at(to + 256 * i)), "l"(from + (bytes ? k : 0)), "r"(bytes) : "memory");
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    const auto bias_of = [&](int column) {
        const int kind = column % KINDS, from = kind * hidden + column / KINDS;
        return float(b_ih[from]) + (kind < 2 ? float(b_hh[from]) : 0.0f);
    };
    float sum[2][4][4] = {};
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fetch(step + STAGES - 1);
        const uint4* const left = memory + step % STAGES * STAGE + (own_row + lane % 16) * 8;
        const uint4* const right = memory + step % STAGES * STAGE + 1024 + (own_column + lane % 8) * 8;
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            unsigned a[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) load4(a[i], left + i % 2 * 128 + (((k + i / 2) * 2 + lane / 16) ^ lane % 8));
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                unsigned b[4];
                load4(b, right + j * 64 + ((k * 2 + lane / 8) ^ lane % 8));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    mma(OF_X, sum[i % 2][j], a[i][0], a[i][1], a[i][2], a[i][3], b[i / 2 * 2], b[i / 2 * 2 + 1]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int column = column0 + own_column + j * 8 + lane % 4 * 2;
        if (column >= STRIDE) continue;
        const float bias = bias_of(column), other = bias_of(column + 1);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = row0 + own_row + i * 8 + lane / 4;
            const float2 both = make_float2(sum[i / 2][j][i % 2 * 2] + bias, sum[i / 2][j][i % 2 * 2 + 1] + other);
            if (row < rows) *reinterpret_cast<float2*>(pre + (long long)row * STRIDE + column) = both;
        }
    }
}

__device__ constexpr float scale_of(const __nv_bfloat16*) { return 256.0f; }  // 2 to the number of bits
__device__ constexpr float scale_of(const __half*) { return 2048.0f; }
__device__ __forceinline__ __nv_bfloat16 cut(const __nv_bfloat16*, float x) { return __float2bfloat16_rz(x); }
__device__ __forceinline__ __half cut(const __half*, float x) { return __float2half_rz(x); }
constexpr float SCALE = scale_of(OF_X);
constexpr unsigned NO_JOB = ~0u;

// A value as a sum of terms; term i is SCALE to the i times its share. All terms have the same sign, and none is zero
// beside another that is not, so that infinite weights make no NaN that the value itself does not make.
__device__ __forceinline__ void split(float h, x_t (&to)[TERMS]) {
    float rest = h, least = h * 0x1p-26f;
    for (int i = 0; i < TERMS; ++i) {
        to[i] = i + 1 < TERMS ? cut(OF_X, rest) : x_t(rest);
        rest = (rest - float(to[i])) * SCALE, least *= SCALE;
        if (!(fabsf(rest) > 0.0f)) rest = least;  // also where h is infinite
    }
}

// Where `place`, in this block's shared memory, is in that of another block of the cluster.
__device__ __forceinline__ unsigned in_block(unsigned place, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank));
    return there;
}
__device__ __forceinline__ void send(unsigned to, uint4 data, unsigned barrier) {
#if SIGNAL
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "r"(data.x), "r"(data.y), "r"(data.z), "r"(data.w), "r"(barrier) : "memory");
#else
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(data.x), "r"(data.y), "r"(data.z), "r"(data.w) : "memory");
#endif
}
__device__ __forceinline__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait(unsigned barrier, int phase) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"(barrier), "r"(phase) : "memory");
}

// No exponential overflows, so that the quick division is exact enough, also where the result is subnormal.
__device__ __forceinline__ float sigmoid_of(float x) {
    const float small = __expf(-fabsf(x));
    return __fdividef(x < 0.0f ? small : 1.0f, 1.0f + small);
}

// Row r of a block's product is gate r % KINDS of its unit r / KINDS; column c is term c / tile of sequence c % tile.
// There are two buffers for h, each with an mbarrier. A block sends h of step t only when it has all of step t - 1, and
// each warp of the cluster sends its part of that after its last look at step t - 2, which lies where step t goes.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1)
__launch_bounds__(threads, threads <= 256 && kept * each <= 8 ? 2 : 1)
walk(const float* __restrict__ pre, const x_t* __restrict__ h0, const x_t* __restrict__ w_hh,
     const x_t* __restrict__ b_hh, x_t* __restrict__ out, x_t* __restrict__ h_n) {
    constexpr int ITEMS = units * tile, TURNS = (ITEMS + threads - 1) / threads, BUFFER = columns * line;
    constexpr int WIDE = columns / 8, PARTS = each * WIDE <= 4 ? 2 : 1;
    constexpr int JOBS = 4 * TERMS * CLUSTER, ROUNDS = (JOBS + 31) / 32;
    __shared__ alignas(8) unsigned long long filled[2];
    x_t* const states = reinterpret_cast<x_t*>(memory);  // [2][columns][line]
    uint4* const spare = memory + BUFFER / 4;  // [warp][deep - kept][each][2][32]
    float* const met = reinterpret_cast<float*>(spare + stored / 16);  // [SPLIT][columns][height]
    x_t* const sent = reinterpret_cast<x_t*>(met + SPLIT * columns * height);  // [TERMS][threads]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int part = warp % SPLIT, strip0 = warp / SPLIT * each;
    const int rank = blockIdx.x % CLUSTER, first = blockIdx.x / CLUSTER * tile, unit0 = rank * units;
    const auto weight_of = [&](int m, int i, int row) {  // 8 weights of a row of strip m, of chunk i
        const int r = (strip0 + m) * 16 + row, unit = unit0 + r / KINDS, k = (part * deep + i) * 32 + q * 8;
        if (r >= KINDS * units || unit >= hidden || k >= hidden) return make_uint4(0, 0, 0, 0);
        return *reinterpret_cast<const uint4*>(w_hh + ((long long)(r % KINDS) * hidden + unit) * hidden + k);
    };
    uint4 low[kept > 0 ? kept : 1][each], high[kept > 0 ? kept : 1][each];
    uint4* const others = spare + warp * ((deep - kept) * each * 64) + lane;
#pragma unroll
    for (int i = 0; i < deep; ++i) {
        for (int m = 0; m < each; ++m) {
            const uint4 one = weight_of(m, i, g), other = weight_of(m, i, g + 8);
            if (i < kept) low[i < kept ? i : 0][m] = one, high[i < kept ? i : 0][m] = other;
            else others[((i - kept) * each + m) * 64] = one, others[((i - kept) * each + m) * 64 + 32] = other;
        }
    }
    for (int i = threadIdx.x; i < BUFFER / 4; i += threads) memory[i] = make_uint4(0, 0, 0, 0);
    const unsigned barriers = at(filled), buffers = at(memory);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tile * hidden; i += threads) {
        const int s = i / hidden, k = i % hidden;
        x_t terms[TERMS];
        split(first + s < batch ? float(h0[(long long)(first + s) * hidden + k]) : 0.0f, terms);
        for (int term = 0; term < TERMS; ++term) states[(term * tile + s) * line + k] = terms[term];
    }
    const auto place = [&](int turn, int& s, int& u) {  // of a sequence and a unit; whether the thread has such
        const int item = threadIdx.x + turn * threads;
        s = item / units, u = item % units;
        return item < ITEMS && unit0 + u < hidden;
    };
    float3 given[TURNS] = {};
    float held[TURNS] = {}, bias[TURNS] = {};  // h, and the bias of h of n
    for (int turn = 0; turn < TURNS; ++turn) {
        int s, u;
        if (!place(turn, s, u) || first + s >= batch) continue;
        const long long here = (long long)(first + s) * hidden + unit0 + u;
        given[turn] = reinterpret_cast<const float3*>(pre)[here];
        held[turn] = float(h0[here]), bias[turn] = float(b_hh[2 * hidden + unit0 + u]);
    }
    // A job: 8 units of a term of a sequence, to one block. `there` is its place in the first buffer.
    unsigned there[TURNS][ROUNDS], barrier[ROUNDS];
#pragma unroll
    for (int i = 0; i < TURNS * ROUNDS; ++i) {
        const int job = i % ROUNDS * 32 + lane, term = job / 4 % TERMS, to_rank = min(job / (4 * TERMS), CLUSTER - 1);
        const int item = warp * 32 + job % 4 * 8 + i / ROUNDS * threads, to_unit = unit0 + item % units;
        const bool some = job < JOBS && item < ITEMS && to_unit < hidden && to_rank * units < hidden;
        const unsigned place = in_block(buffers + ((term * tile + item / units) * line + to_unit) * 2, to_rank);
        there[i / ROUNDS][i % ROUNDS] = some ? place : NO_JOB, barrier[i % ROUNDS] = in_block(barriers, to_rank);
    }
    const int steps = SIGNAL && unit0 >= hidden ? 0 : time;  // a block without units sends and gets nothing
    arrive(), wait();  // all blocks run and have their barriers
#pragma unroll 1
    for (int t = 0; t < steps; ++t) {
        const bool last = t + 1 == time;
#if SIGNAL
        if (threadIdx.x == 0 && !last) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                         ::"r"(barriers + (t + 1) % 2 * 8), "r"(hidden * tile * TERMS * 2) : "memory");
        }
        if (t > 0) wait(barriers + t % 2 * 8, (t - 1) / 2 % 2);
#else
        if (t > 0) wait();
#endif
        float sum[PARTS][each][WIDE][4] = {};
        const x_t* const now = states + t % 2 * BUFFER + g * line + part * deep * 32 + q * 8;
#pragma unroll
        for (int i = 0; i < deep; ++i) {
            uint4 b[WIDE];
            for (int n = 0; n < WIDE; ++n) b[n] = *reinterpret_cast<const uint4*>(now + n * 8 * line + i * 32);
            for (int m = 0; m < each; ++m) {
                uint4 one, other;
                if (i < kept) one = low[i < kept ? i : 0][m], other = high[i < kept ? i : 0][m];
                else one = others[((i - kept) * each + m) * 64], other = others[((i - kept) * each + m) * 64 + 32];
                for (int n = 0; n < WIDE; ++n) {
                    mma(OF_X, sum[0][m][n], one.x, other.x, one.y, other.y, b[n].x, b[n].y);
                    mma(OF_X, sum[PARTS - 1][m][n], one.z, other.z, one.w, other.w, b[n].z, b[n].w);
                }
            }
        }
        float* const to = met + (part * columns + 2 * q) * height + strip0 * 16 + g;
#pragma unroll
        for (int i = 0; i < each * WIDE * 4; ++i) {
            const int m = i / 4 % each, n = i / 4 / each, j = i % 4;
            const float all = PARTS == 2 ? sum[0][m][n][j] + sum[PARTS - 1][m][n][j] : sum[0][m][n][j];
            to[(n * 8 + j % 2) * height + m * 16 + j / 2 * 8] = all;
        }
        __syncthreads();
        float found[TURNS] = {};
        for (int turn = 0; turn < TURNS; ++turn) {
            int s, u;
            if (place(turn, s, u)) {
                float r = given[turn].x, z = given[turn].y, n = bias[turn];
#pragma unroll
                for (int i = TERMS * SPLIT - 1; i >= 0; --i) {
                    const float* const from = met + (i % SPLIT * columns + i / SPLIT * tile + s) * height + u * KINDS;
                    const float share = i / SPLIT == 0 ? 1.0f : i / SPLIT == 1 ? 1.0f / SCALE : 1.0f / SCALE / SCALE;
                    r = fmaf(from[0], share, r), z = fmaf(from[1], share, z), n = fmaf(from[2], share, n);
                }
                n = tanhf(fmaf(sigmoid_of(r), n, given[turn].z));
                found[turn] = held[turn] = n + sigmoid_of(z) * (held[turn] - n);
                x_t terms[TERMS];
                split(found[turn], terms);
                for (int term = 0; term < TERMS; ++term) sent[term * threads + threadIdx.x] = terms[term];
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                if (last || there[turn][i] == NO_JOB) continue;
                const int job = i * 32 + lane, next = (t + 1) % 2;
                const x_t* const from = sent + job / 4 % TERMS * threads + warp * 32 + job % 4 * 8;
                send(there[turn][i] + next * BUFFER * 2, *reinterpret_cast<const uint4*>(from), barrier[i] + next * 8);
            }
            __syncwarp();
        }
#if !SIGNAL
        if (!last) arrive();
#endif
        for (int turn = 0; turn < TURNS; ++turn) {  // what no other block waits for
            int s, u;
            if (!place(turn, s, u) || first + s >= batch) continue;
            const long long here = (long long)(first + s) * hidden + unit0 + u, size = (long long)batch * hidden;
            out[t * size + here] = x_t(found[turn]);
            if (last) h_n[here] = x_t(found[turn]);
            else given[turn] = reinterpret_cast<const float3*>(pre)[(t + 1) * size + here];
        }
#if SIGNAL
        __syncthreads();  // the sums have been read
#endif
    }
    if (SIGNAL) arrive(), wait();  // no block ends while another may send to it
}
