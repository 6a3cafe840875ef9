/*---
op = "gru"
note = "what comes from x for all steps by one product on tensor cores (mma.sync, tiles by cp.async); then one cooperative launch walks through time: each block holds the weights of some units as fragments in registers, its warps share the sum over h, and the blocks of the same sequences read each other's h of the step before through the L2 cache, each value as the sum of two or three of the inputs' dtype, so that its float32 is kept"
when = "input % 8 == 0 and hidden % 8 == 0 and itemsize(x) == 2"
specialize = ["time", "batch", "input", "hidden", "rows", "units", "blocks", "groups", "tile", "tiles"]
require = ["blocks * groups <= sms", "tiles * units * 3 <= 96"]

[knobs]
STAGES = [4, 3, 6]

[let]
rows = "time * batch"
units = "8 * ceil_div(hidden, 8 * sms)"
blocks = "ceil_div(hidden, units)"
groups = "max(1, min(ceil_div(batch, 8), sms // blocks))"
tile = "ceil_div(batch, groups)"
tiles = "ceil_div(tile, 16)"

[workspace]
pre = { shape = ["rows", "hidden", 4], dtype = "float32" }
states = { shape = [2, 3, "batch", "hidden"], dtype = "x" }
arrived = { shape = ["groups"], dtype = "int32", zero = true }

[[launch]]
entry = "part_of_x"
grid = ["ceil_div(rows, 128)", "ceil_div(3 * hidden, 64)"]
block = [256]
shared = "STAGES * 24576"
args = ["x", "w_ih", "b_ih", "b_hh", "pre"]

[[launch]]
entry = "walk"
grid = ["blocks * groups"]
block = [256]
args = ["pre", "h0", "w_hh", "b_hh", "states", "arrived", "out", "h_n"]
cooperative = true
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int DEEP = 64, STAGE = 128 * 8 + 64 * 8;  // of 16 bytes: a tile of 128 rows and one of 64, of 64 terms
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at(to)), "l"(from), "r"(bytes) : "memory");
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

__device__ __forceinline__ void mma(const __nv_bfloat16*, float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(const __half*, float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct Source {
    const x_t* from;
    bool inside;
};
struct Tile { float at[2][4][4]; };  // a warp's: twice 16 rows, four times 8 columns

// A tile of 128 x 64 of a product. a(step, line, piece) and b(...) say where 8 values lie: lines are rows and pieces run
// along the sum, or, where A_ALONG or B_ALONG, lines run along the sum and pieces are of rows or columns.
template <bool A_ALONG, bool B_ALONG, class A, class B> __device__ __forceinline__ void multiply(Tile& sum, A a, B b, int steps) {
    constexpr int A_PIECES = A_ALONG ? 16 : 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp % 4, warp_n = warp / 4;
    const auto fetch = [&](int step) {
        if (step < steps) {
            uint4* const left = memory + step % STAGES * STAGE;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int index = threadIdx.x + i * 256, line = index / A_PIECES, piece = index % A_PIECES;
                const Source source = a(step, line, piece);
                copy16(left + line * A_PIECES + (piece ^ line % 8), source.from, source.inside ? 16 : 0);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int index = threadIdx.x + i * 256, line = index / 8, piece = index % 8;
                const Source source = b(step, line, piece);
                copy16(left + 1024 + line * 8 + (piece ^ line % 8), source.from, source.inside ? 16 : 0);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fetch(step + STAGES - 1);
        const uint4* const left = memory + step % STAGES * STAGE;
        const uint4* const right = left + 1024;
#pragma unroll
        for (int k = 0; k < DEEP / 16; k += 2) {
            unsigned of_a[2][2][4];
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int line = A_ALONG ? (k + part) * 16 + lane / 16 * 8 + lane % 8 : warp_m * 32 + i * 16 + lane % 16;
                    const int piece = A_ALONG ? warp_m * 4 + i * 2 + lane / 8 % 2 : (k + part) * 2 + lane / 16;
                    load4<A_ALONG>(of_a[part][i], left + line * A_PIECES + (piece ^ line % 8));
                }
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int line = B_ALONG ? k * 16 + lane : warp_n * 32 + j * 8 + lane % 8;
                const int piece = B_ALONG ? warp_n * 4 + j : k * 2 + lane / 8;
                unsigned of_b[4];
                load4<B_ALONG>(of_b, right + line * 8 + (piece ^ line % 8));
#pragma unroll
                for (int i = 0; i < 2; ++i) {
#pragma unroll
                    for (int part = 0; part < 2; ++part) {
                        const unsigned(&some)[4] = of_a[part][i];
                        mma(static_cast<const x_t*>(nullptr), sum.at[i][j], some[0], some[1], some[2], some[3], of_b[2 * part], of_b[2 * part + 1]);
                    }
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// put(row, column, values of this and the next column) for what the thread has of a tile.
template <class Put> __device__ __forceinline__ void for_each(const Tile& sum, Put put) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                put(warp % 4 * 32 + i * 16 + half * 8 + lane / 4, warp / 4 * 32 + j * 8 + lane % 4 * 2, sum.at[i][j][2 * half], sum.at[i][j][2 * half + 1]);
            }
        }
    }
}


__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + __expf(-x)); }

// How many values of a type make a float32.
__device__ constexpr int terms_of(const __nv_bfloat16*) { return 3; }
__device__ constexpr int terms_of(const __half*) { return 2; }

constexpr int KINDS = 3, WIDTH_OF_UNIT = 4;  // gates, and floats that a unit has in `pre`
constexpr int TERMS = terms_of(static_cast<const x_t*>(nullptr));

extern "C" __global__ void __launch_bounds__(256)
part_of_x(const x_t* __restrict__ x, const x_t* __restrict__ w_ih, const x_t* __restrict__ b_ih, const x_t* __restrict__ b_hh,
          float* __restrict__ pre) {
    const int row0 = blockIdx.x * 128, column0 = blockIdx.y * 64;
    Tile sum = {};
    multiply<false, false>(
        sum,
        [=](int step, int line, int piece) -> Source {
            const int row = min(row0 + line, rows - 1), k = step * DEEP + piece * 8;
            return {x + (long long)row * input + (k < input ? k : 0), k < input};
        },
        [=](int step, int line, int piece) -> Source {
            const int column = min(column0 + line, KINDS * hidden - 1), k = step * DEEP + piece * 8;
            return {w_ih + (long long)column * input + (k < input ? k : 0), k < input};
        },
        (input + DEEP - 1) / DEEP);
    for_each(sum, [=](int line, int column, float one, float other) {
        const int row = row0 + line, first = column0 + column, kind = first / hidden, unit = first % hidden;
        if (row >= rows || first >= KINDS * hidden) return;
        float* const to = pre + ((long long)row * hidden + unit) * WIDTH_OF_UNIT + kind;
        to[0] = one + (float(b_ih[first + 0]) + (kind < 2 ? float(b_hh[first + 0]) : 0.0f)), to[WIDTH_OF_UNIT] = other + (float(b_ih[first + 1]) + (kind < 2 ? float(b_hh[first + 1]) : 0.0f));
    });
}

extern "C" __global__ void __launch_bounds__(256, 1)
walk(const float* __restrict__ pre, const x_t* __restrict__ h0, const x_t* __restrict__ w_hh, const x_t* __restrict__ b_hh,
     x_t* states, int* arrived, x_t* __restrict__ out, x_t* __restrict__ h_n) {
    constexpr int CHU3S = (hidden + 31) / 32, OWN = (CHU3S + 7) / 8, ITEMS = tiles * 16 * units, EACH = (ITEMS + 255) / 256;
    __shared__ float met[8][tiles * 16][KINDS * units];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int group = blockIdx.x / blocks, first = group * tile, unit0 = blockIdx.x % blocks * units;
    uint4 weight[OWN][KINDS][units / 8];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const int k = (warp + 8 * i) * 32 + q * 8;
#pragma unroll
        for (int kind = 0; kind < KINDS; ++kind) {
#pragma unroll
            for (int j = 0; j < units / 8; ++j) {
                const int unit = unit0 + j * 8 + g;
                weight[i][kind][j] = make_uint4(0, 0, 0, 0);
                if (k < hidden && unit < hidden) {
                    weight[i][kind][j] = *reinterpret_cast<const uint4*>(w_hh + ((long long)kind * hidden + unit) * hidden + k);
                }
            }
        }
    }
    const auto place = [&](int i, long long& to) {  // of an item, in [batch, hidden]; whether there is such a place
        const int item = threadIdx.x + 256 * i, row = item / units, unit = unit0 + item % units;
        to = (long long)(first + row) * hidden + unit;
        return item < ITEMS && row < tile && first + row < batch && unit < hidden;
    };
    float held[EACH], bias[EACH];  // h, and n's bias of h
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        long long here;
        const bool inside = place(i, here);
        held[i] = inside ? float(h0[here]) : 0.0f;
        bias[i] = inside ? float(b_hh[2 * hidden + here % hidden]) : 0.0f;
    }
#pragma unroll 1
    for (int t = 0; t < time; ++t) {
        const long long step = (long long)t * batch * hidden;
        float4 given[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            long long here;
            given[i] = float4{};
            if (place(i, here)) given[i] = reinterpret_cast<const float4*>(pre)[step + here];
        }
        if (t > 0) {
            if (threadIdx.x == 0) {
                while (atomicAdd(arrived + group, 0) < blocks * t) {}
                __threadfence();
            }
            __syncthreads();
        }
        // What the last step left: values and, after all of them, what their rounding took. Those of h0 are exact.
        const x_t* const from = t > 0 ? states + t % 2 * ((long long)TERMS * batch * hidden) : h0;
#pragma unroll
        for (int m = 0; m < tiles; ++m) {
            const int low = min(first + m * 16 + g, batch - 1), high = min(first + m * 16 + g + 8, batch - 1);
            uint4 a[TERMS][OWN], b[TERMS][OWN];
#pragma unroll
            for (int rest = 0; rest < TERMS; ++rest) {
#pragma unroll
                for (int i = 0; i < OWN; ++i) {
                    const int k = (warp + 8 * i) * 32 + q * 8;
                    a[rest][i] = b[rest][i] = make_uint4(0, 0, 0, 0);
                    if (k < hidden && (rest == 0 || t > 0)) {
                        a[rest][i] = __ldcg(reinterpret_cast<const uint4*>(from + ((long long)rest * batch + low) * hidden + k));
                        b[rest][i] = __ldcg(reinterpret_cast<const uint4*>(from + ((long long)rest * batch + high) * hidden + k));
                    }
                }
            }
#pragma unroll
            for (int kind = 0; kind < KINDS; ++kind) {
#pragma unroll
                for (int j = 0; j < units / 8; ++j) {
                    float sum[4] = {};
#pragma unroll
                    for (int i = 0; i < TERMS * OWN; ++i) {
                        const uint4 w = weight[i / TERMS][kind][j], one = a[i % TERMS][i / TERMS], other = b[i % TERMS][i / TERMS];
                        mma(static_cast<const x_t*>(nullptr), sum, one.x, other.x, one.y, other.y, w.x, w.y);
                        mma(static_cast<const x_t*>(nullptr), sum, one.z, other.z, one.w, other.w, w.z, w.w);
                    }
                    float* const to = &met[warp][m * 16 + g][kind * units + j * 8 + 2 * q];
                    to[0] = sum[0], to[1] = sum[1];
                    to[8 * KINDS * units] = sum[2], to[8 * KINDS * units + 1] = sum[3];
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            long long here;
            if (!place(i, here)) continue;
            const int item = threadIdx.x + 256 * i;
            float gate[KINDS];
#pragma unroll
            for (int kind = 0; kind < KINDS; ++kind) {
                gate[kind] = 0.0f;
#pragma unroll
                for (int w = 0; w < 8; ++w) gate[kind] += met[w][item / units][kind * units + item % units];
            }
            const float r = sigmoid_of(given[i].x + gate[0]), z = sigmoid_of(given[i].y + gate[1]);
            const float n = tanhf(fmaf(r, gate[2] + bias[i], given[i].z)), h = n + z * (held[i] - n);
            held[i] = h;
            const x_t rounded = x_t(h);
            x_t* const to = states + (t + 1) % 2 * ((long long)TERMS * batch * hidden) + here;
            float rest = h;
#pragma unroll
            for (int term = 0; term < TERMS; ++term) {
                const x_t some = x_t(rest);
                to[term * ((long long)batch * hidden)] = some;
                rest -= float(some);
            }
            out[step + here] = rounded;
            if (t + 1 == time) h_n[here] = x_t(h);
        }
        if (t + 1 == time) break;
        __threadfence();  // by each thread, for what it wrote
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(arrived + group, 1);
    }
}
