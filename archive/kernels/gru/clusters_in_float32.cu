/*---
op = "gru"
note = "what comes from x for all steps by one product in tiles; then a cluster of 8 blocks walks through time with up to 4 sequences and all the units: a warp computes all gates of some units with float32 weights in registers, its lanes share the terms of a sum, and sends its part of h, 4 sequences in 16 bytes, to the shared memory of all blocks by st.async; a block waits only at its own mbarrier, for the bytes of the whole h"
when = "3 * ceil_div(hidden, 64) * ceil_div(hidden, 32) <= 136 and hidden >= 8"
specialize = ["time", "batch", "input", "hidden", "gates", "vec", "own", "units", "lanes", "deep", "tile", "line"]

[knobs]
LANES = [16, 8, 32]

[let]
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, input % 2)) + 2 * (1 - min(1, input % 4)) + 4 * (1 - min(1, input % 8)))"
own = "ceil_div(hidden, 64)"
units = "8 * own"
lanes = "LANES + (32 - LANES) * min(1, 3 * own * LANES % 32)"
deep = "ceil_div(hidden, lanes)"
tile = "min(4, ceil_div(batch, max(1, sms // 8)))"
line = "deep * lanes"

[workspace]
pre = { shape = ["time", "batch", "hidden", 3], dtype = "float32" }

[[launch]]
entry = "part_of_x"
grid = ["ceil_div(time * batch, 128)", "ceil_div(gates, 128)"]
block = [256]
args = ["x", "w_ih", "b_ih", "b_hh", "pre", "time * batch"]

[[launch]]
entry = "walk"
grid = ["8 * ceil_div(batch, tile)"]
block = [256]
shared = "2 * 16 * line"
args = ["pre", "h0", "w_hh", "b_hh", "out", "h_n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int KINDS = 3, CLUSTER = 8;  // gates, and blocks that share sequences
constexpr int DEEP = 16, WIDE = 128 + 4;
extern __shared__ float4 memory[];

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

// Eight terms, from `term` on, of a row.
template <class T>
__device__ __forceinline__ void fetch(Pack<T> (&to)[8 / vec], const T* __restrict__ row, int term, bool inside) {
#pragma unroll
    for (int i = 0; i < 8 / vec; ++i) {
        if (inside && term + i * vec < input) to[i] = *reinterpret_cast<const Pack<T>*>(row + term + i * vec);
        else to[i] = Pack<T>{};
    }
}

// Column j of the product belongs to gate j % KINDS of unit j / KINDS, so that a unit's gates lie side by side.
extern "C" __global__ void __launch_bounds__(256)
part_of_x(const x_t* __restrict__ x, const x_t* __restrict__ w_ih, const x_t* __restrict__ b_ih,
          const x_t* __restrict__ b_hh, float* __restrict__ pre, int rows) {
    __shared__ alignas(16) float left[DEEP][WIDE], right[DEEP][WIDE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, place = threadIdx.x / 2, half_deep = threadIdx.x % 2 * 8;
    const int row = blockIdx.x * 128 + place, col = blockIdx.y * 128 + place;
    const x_t* from_x = x + (long long)row * input;
    const x_t* from_w = w_ih + ((long long)(col % KINDS) * hidden + col / KINDS) * input;
    Pack<x_t> some[8 / vec], others[8 / vec];
    fetch(some, from_x, half_deep, row < rows);
    fetch(others, from_w, half_deep, col < gates);
    float sum[8][8] = {};
    for (int start = 0; start < input; start += DEEP) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            left[half_deep + i][place] = float(some[i / vec].at[i % vec]);
            right[half_deep + i][place] = float(others[i / vec].at[i % vec]);
        }
        __syncthreads();
        fetch(some, from_x, start + DEEP + half_deep, row < rows);
        fetch(others, from_w, start + DEEP + half_deep, col < gates);
#pragma unroll
        for (int k = 0; k < DEEP; ++k) {
            float a[8], b[8];
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                *reinterpret_cast<float4*>(a + i) = *reinterpret_cast<const float4*>(&left[k][ty * 4 + i * 16]);
                *reinterpret_cast<float4*>(b + i) = *reinterpret_cast<const float4*>(&right[k][tx * 4 + i * 16]);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const int to_col = blockIdx.y * 128 + j / 4 * 64 + tx * 4 + j % 4, kind = to_col % KINDS;
        if (to_col >= gates) continue;
        const int from = kind * hidden + to_col / KINDS;
        const float bias = float(b_ih[from]) + (kind < 2 ? float(b_hh[from]) : 0.0f);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int to_row = blockIdx.x * 128 + i / 4 * 64 + ty * 4 + i % 4;
            if (to_row < rows) pre[(long long)to_row * gates + to_col] = sum[i][j] + bias;
        }
    }
}

// Adds up each of N values over lanes that differ in bits below 2 * FROM; while N is even a lane goes on with half.
template <int N, int FROM> __device__ __forceinline__ void reduce(float* values, int lane, int& first, bool& mine) {
    if constexpr (FROM >= 1) {
        if constexpr (N % 2 == 0) {
            const bool upper = lane & FROM;
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                const float given = upper ? values[i] : values[i + N / 2], kept = upper ? values[i + N / 2] : values[i];
                values[i] = kept + __shfl_xor_sync(0xffffffffu, given, FROM);
            }
            first += upper ? N / 2 : 0;
            reduce<N / 2, FROM / 2>(values, lane, first, mine);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) values[i] += __shfl_xor_sync(0xffffffffu, values[i], FROM);
            mine = mine && !(lane & FROM);
            reduce<N, FROM / 2>(values, lane, first, mine);
        }
    }
}
constexpr int left_of(int count, int from) {
    return from < 1 ? count : left_of(count % 2 ? count : count / 2, from / 2);
}

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
// Where `place`, in this block's shared memory, is in that of another block of the cluster.
__device__ __forceinline__ unsigned in_block(unsigned place, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank));
    return there;
}
__device__ __forceinline__ void send(unsigned to, uint4 data, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "r"(data.x), "r"(data.y), "r"(data.z), "r"(data.w), "r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait(unsigned barrier, int phase) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"(barrier), "r"(phase) : "memory");
}

// No exponential overflows, so that a result may be subnormal.
__device__ __forceinline__ float sigmoid_of(float x) {
    const float small = expf(-fabsf(x));
    return (x < 0.0f ? small : 1.0f) / (1.0f + small);
}

// Row r of a warp is gate r % KINDS of its unit r / KINDS. There are two buffers for h, each with an mbarrier. A block
// sends h of step t only when it has all of step t - 1, and each block sends that after its last look at step t - 2,
// which lies where step t goes.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(256, 1)
walk(const float* __restrict__ pre, const x_t* __restrict__ h0, const x_t* __restrict__ w_hh,
     const x_t* __restrict__ b_hh, x_t* __restrict__ out, x_t* __restrict__ h_n) {
    constexpr int ROWS = KINDS * own, EACH = ROWS * lanes / 32, BUFFER = 4 * line, ITEMS = 4 * own;
    constexpr int TURNS = (ITEMS + 31) / 32, ROUNDS = (own * CLUSTER + 31) / 32, STAY = left_of(4 * EACH, lanes / 2);
    __shared__ alignas(8) unsigned long long filled[2];
    __shared__ alignas(16) float met[8][4 * ROWS], sent[8][ITEMS];
    float* const states = reinterpret_cast<float*>(memory);  // [2][line][4]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k0 = lane % lanes, row0 = lane / lanes * EACH;
    const int rank = blockIdx.x % CLUSTER, first = blockIdx.x / CLUSTER * tile, unit0 = rank * units + warp * own;
    float weight[EACH][deep];
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const int kind = (row0 + r) % KINDS, unit = unit0 + (row0 + r) / KINDS;
#pragma unroll
        for (int i = 0; i < deep; ++i) {
            const int k = k0 + lanes * i;
            const bool inside = unit < hidden && k < hidden;
            weight[r][i] = inside ? float(w_hh[((long long)kind * hidden + unit) * hidden + k]) : 0.0f;
        }
    }
    const unsigned barriers = at(filled), buffers = at(memory);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (int i = threadIdx.x; i < 2 * BUFFER; i += 256) {
        const int k = i / 4, s = i % 4;  // of the first buffer
        const bool inside = k < hidden && s < tile && first + s < batch;
        states[i] = inside ? float(h0[(long long)(first + s) * hidden + k]) : 0.0f;
    }
    const auto place = [&](int turn, int& s, int& u) {  // of a sequence and a unit; whether the lane has such
        const int item = lane + turn * 32;
        s = item % 4, u = item / 4;
        return item < ITEMS && unit0 + u < hidden;
    };
    float3 given[TURNS] = {};
    float held[TURNS] = {}, bias[TURNS] = {};  // h, and the bias of h of n
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        int s, u;
        if (!place(turn, s, u) || s >= tile || first + s >= batch) continue;
        const long long here = (long long)(first + s) * hidden + unit0 + u;
        given[turn] = reinterpret_cast<const float3*>(pre)[here];
        held[turn] = float(h0[here]), bias[turn] = float(b_hh[2 * hidden + unit0 + u]);
    }
    // A job: a unit to one block. `there` is its place in the first buffer.
    unsigned there[ROUNDS], barrier[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int job = i * 32 + lane, unit = unit0 + job % own, to_rank = min(job / own, CLUSTER - 1);
        const bool some = job < own * CLUSTER && unit < hidden && to_rank * units < hidden;
        there[i] = in_block(buffers + unit * 16, to_rank), barrier[i] = in_block(barriers, to_rank);
        if (!some) there[i] = ~0u;
    }
    const int steps = rank * units >= hidden ? 0 : time;  // a block without units sends and gets nothing
    arrive(), wait();  // all blocks run and have their barriers
#pragma unroll 1
    for (int t = 0; t < steps; ++t) {
        const bool last = t + 1 == time;
        const int next = (t + 1) % 2;
        if (threadIdx.x == 0 && !last) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                         ::"r"(barriers + next * 8), "r"(hidden * 16) : "memory");
        }
        if (t > 0) wait(barriers + t % 2 * 8, (t - 1) / 2 % 2);
        float sum[EACH * 4] = {};
        const float4* const now = reinterpret_cast<const float4*>(states) + t % 2 * line + k0;
#pragma unroll
        for (int i = 0; i < deep; ++i) {
            const float4 h = now[lanes * i];
#pragma unroll
            for (int r = 0; r < EACH; ++r) {
                float* const of = sum + 4 * r;
                of[0] = fmaf(weight[r][i], h.x, of[0]), of[1] = fmaf(weight[r][i], h.y, of[1]);
                of[2] = fmaf(weight[r][i], h.z, of[2]), of[3] = fmaf(weight[r][i], h.w, of[3]);
            }
        }
        int start = 4 * row0;
        bool mine = true;
        reduce<4 * EACH, lanes / 2>(sum, lane, start, mine);
#pragma unroll
        for (int i = 0; i < STAY; ++i) {
            if (mine) met[warp][(start + i) % 4 * ROWS + (start + i) / 4] = sum[i];
        }
        __syncwarp();
        float found[TURNS] = {};
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            int s, u;
            if (!place(turn, s, u)) continue;
            const float* const from = &met[warp][s * ROWS + u * KINDS];
            const float gate = sigmoid_of(given[turn].x + from[0]), z = sigmoid_of(given[turn].y + from[1]);
            const float n = tanhf(fmaf(gate, from[2] + bias[turn], given[turn].z));
            found[turn] = held[turn] = n + z * (held[turn] - n);
            sent[warp][lane + turn * 32] = found[turn];
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            if (last || there[i] == ~0u) continue;
            const uint4 data = *reinterpret_cast<const uint4*>(&sent[warp][(i * 32 + lane) % own * 4]);
            send(there[i] + next * BUFFER * 4, data, barrier[i] + next * 8);
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {  // what no other block waits for
            int s, u;
            if (!place(turn, s, u) || s >= tile || first + s >= batch) continue;
            const long long here = (long long)(first + s) * hidden + unit0 + u, size = (long long)batch * hidden;
            out[t * size + here] = x_t(found[turn]);
            if (last) h_n[here] = x_t(found[turn]);
            else given[turn] = reinterpret_cast<const float3*>(pre)[(t + 1) * size + here];
        }
        __syncthreads();  // no warp falls two phases behind
    }
    arrive(), wait();  // no block ends while another may send to it
}
