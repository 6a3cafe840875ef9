/*---
op = "lstm_backward"
note = "the gates recomputed and all gradients of x and the weights made on tensor cores (mma.sync, tiles by cp.async); one cooperative launch walks back through time, each block holding the weights of 8 units as fragments in registers and the gradients of the gates, in the inputs' dtype, passed between blocks through the L2 cache once a step; sums over steps are split among blocks and added in order"
when = "input % 8 == 0 and hidden % 8 == 0 and itemsize(x) == 2"
specialize = ["time", "batch", "input", "hidden", "rows", "kx", "wide", "units", "blocks", "groups", "tile", "tiles", "splits"]
require = ["blocks * groups <= sms", "tiles * units <= 88"]

[knobs]
STAGES = [4, 3, 6]
SPLITS = [2, 1, 4]

[let]
kx = "gates"
wide = "4 * hidden"
units = "8 * ceil_div(hidden, 8 * sms)"
blocks = "ceil_div(hidden, units)"
groups = "max(1, min(ceil_div(batch, 8), sms // blocks))"
tile = "ceil_div(batch, groups)"
tiles = "ceil_div(tile, 16)"
products = "ceil_div(kx, 128) * (ceil_div(input, 64) + ceil_div(hidden, 64))"
splits = "max(1, min(ceil_div(rows, 256), ceil_div(sms * SPLITS, products)))"

[workspace]
gate = { shape = ["rows", "hidden", 4], dtype = "float32" }
cells = { shape = ["rows", "hidden"], dtype = "float32" }
back = { shape = ["rows", "wide"], dtype = "x" }
arrived = { shape = ["groups"], dtype = "int32", zero = true }
weight_parts = { shape = ["splits", "kx", "input + hidden"], dtype = "float32" }
bias_parts = { shape = ["batch", "wide"], dtype = "float32" }

[[launch]]
entry = "gates_of"
grid = ["ceil_div(rows, 128)", "ceil_div(4 * hidden, 64)"]
block = [256]
shared = "STAGES * 24576"
args = ["x", "h0", "out", "w_ih", "w_hh", "b_ih", "b_hh", "gate"]

[[launch]]
entry = "cells_of"
grid = ["ceil_div(batch * hidden, 64)"]
block = [64]
args = ["gate", "c0", "cells"]

[[launch]]
entry = "walk_back"
grid = ["blocks * groups"]
block = [256]
args = ["gate", "cells", "c0", "w_hh", "grad_out", "grad_h_n", "grad_c_n", "back", "bias_parts", "arrived", "grad_h0", "grad_c0"]
cooperative = true

[[launch]]
entry = "to_x"
grid = ["ceil_div(rows, 128)", "ceil_div(input, 64)"]
block = [256]
shared = "STAGES * 24576"
args = ["back", "w_ih", "grad_x"]

[[launch]]
entry = "to_weights"
grid = ["ceil_div(kx, 128)", "ceil_div(input, 64) + ceil_div(hidden, 64)", "splits"]
block = [256]
shared = "STAGES * 24576"
args = ["back", "x", "h0", "out", "weight_parts"]

[[launch]]
entry = "add_up"
grid = ["ceil_div(kx * (input + hidden) + kx, 256)"]
block = [256]
args = ["weight_parts", "bias_parts", "grad_w_ih", "grad_w_hh", "grad_b_ih", "grad_b_hh"]
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

// The state before the step of this row.
__device__ __forceinline__ const x_t* state(const x_t* h0, const x_t* out, int row) {
    return row < batch ? h0 + (long long)row * hidden : out + (long long)(row - batch) * hidden;
}

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + __expf(-x)); }

// All gates of all steps, activated, a unit's side by side.
extern "C" __global__ void __launch_bounds__(256)
gates_of(const x_t* __restrict__ x, const x_t* __restrict__ h0, const x_t* __restrict__ out, const x_t* __restrict__ w_ih,
         const x_t* __restrict__ w_hh, const x_t* __restrict__ b_ih, const x_t* __restrict__ b_hh, float* __restrict__ gate) {
    constexpr int OF_X = (input + DEEP - 1) / DEEP, STEPS = OF_X + (hidden + DEEP - 1) / DEEP;
    const int row0 = blockIdx.x * 128, column0 = blockIdx.y * 64;
    Tile sum = {};
    multiply<false, false>(
        sum,
        [=](int step, int line, int piece) -> Source {
            const int row = min(row0 + line, rows - 1), k = (step < OF_X ? step : step - OF_X) * DEEP + piece * 8;
            const x_t* const from = step < OF_X ? x + (long long)row * input : state(h0, out, row);
            const bool inside = k < (step < OF_X ? input : hidden);
            return {from + (inside ? k : 0), inside};
        },
        [=](int step, int line, int piece) -> Source {
            const int column = min(column0 + line, 4 * hidden - 1), k = (step < OF_X ? step : step - OF_X) * DEEP + piece * 8;
            const int of = column;
            const bool inside = k < (step < OF_X ? input : hidden);
            return {step < OF_X ? w_ih + (long long)of * input + (inside ? k : 0) : w_hh + (long long)of * hidden + (inside ? k : 0), inside};
        },
        STEPS);
    for_each(sum, [=](int line, int column, float one, float other) {
        const int row = row0 + line, first = column0 + column, kind = first / hidden, unit = first % hidden;
        if (row >= rows || first >= 4 * hidden) return;
        const float values[2] = {one, other};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int of = unit + e;
            float value = values[e];
            value += float(b_ih[kind * hidden + of]) + float(b_hh[kind * hidden + of]);
            value = kind == 2 ? tanhf(value) : sigmoid_of(value);
            gate[((long long)row * hidden + of) * 4 + kind] = value;
        }
    });
}

extern "C" __global__ void __launch_bounds__(64)
cells_of(const float* __restrict__ gate, const x_t* __restrict__ c0, float* __restrict__ cells) {
    const int own = blockIdx.x * 64 + threadIdx.x;
    if (own >= batch * hidden) return;
    float c = float(c0[own]);
#pragma unroll 8
    for (int t = 0; t < time; ++t) {
        const long long here = (long long)t * batch * hidden + own;
        const float4 of = reinterpret_cast<const float4*>(gate)[here];
        cells[here] = c = fmaf(of.y, c, of.x * of.z);
    }
}

// Each block has the weights of some units in registers, by warps along the sum; the blocks of the same sequences hand
// each other the gradients of the gates through memory once a step.
extern "C" __global__ void __launch_bounds__(256, 1)
walk_back(const float* __restrict__ gate, const float* __restrict__ cells, const x_t* __restrict__ c0, const x_t* __restrict__ w_hh,
          const x_t* __restrict__ grad_out, const x_t* __restrict__ grad_h_n, const x_t* __restrict__ grad_c_n, x_t* back, float* __restrict__ bias_parts, int* arrived,
          x_t* __restrict__ grad_h0, x_t* __restrict__ grad_c0) {
    constexpr int DEPTH = kx, CHUNKS = (DEPTH + 31) / 32, OWN = (CHUNKS + 7) / 8, ITEMS = tiles * 16 * units, EACH = (ITEMS + 255) / 256;
    __shared__ float met[8][tiles * 16][units];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int group = blockIdx.x / blocks, first = group * tile, unit0 = blockIdx.x % blocks * units;
    unsigned weight[OWN][units / 8][4];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
#pragma unroll
        for (int j = 0; j < units / 8; ++j) {
            const int k = (warp + 8 * i) * 32 + q * 8, unit = unit0 + j * 8 + g;
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                union { x_t at[2]; unsigned word; } two;
                two.word = 0;
                if (k < DEPTH && unit < hidden) {
                    two.at[0] = w_hh[(long long)(k + 2 * w) * hidden + unit], two.at[1] = w_hh[(long long)(k + 2 * w + 1) * hidden + unit];
                }
                weight[i][j][w] = two.word;
            }
        }
    }
    // What comes back to h from the step `t`, for this block's items, when all blocks have written their parts of it.
    const auto through_weights = [&](int t, float (&to)[EACH]) {
        if (threadIdx.x == 0) {
            __threadfence();
            while (atomicAdd(arrived + group, 0) < blocks * (time - t)) {}
            __threadfence();
        }
        __syncthreads();
#pragma unroll
        for (int m = 0; m < tiles; ++m) {
            const int low = min(first + m * 16 + g, batch - 1), high = min(first + m * 16 + g + 8, batch - 1);
            uint4 a[OWN], b[OWN];
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const int k = (warp + 8 * i) * 32 + q * 8, column = k;
                a[i] = b[i] = make_uint4(0, 0, 0, 0);
                if (k < DEPTH) {
                    a[i] = __ldcg(reinterpret_cast<const uint4*>(back + ((long long)t * batch + low) * wide + column));
                    b[i] = __ldcg(reinterpret_cast<const uint4*>(back + ((long long)t * batch + high) * wide + column));
                }
            }
#pragma unroll
            for (int j = 0; j < units / 8; ++j) {
                float sum[4] = {};
#pragma unroll
                for (int i = 0; i < OWN; ++i) {
                    const unsigned(&w)[4] = weight[i][j];
                    mma(static_cast<const x_t*>(nullptr), sum, a[i].x, b[i].x, a[i].y, b[i].y, w[0], w[1]);
                    mma(static_cast<const x_t*>(nullptr), sum, a[i].z, b[i].z, a[i].w, b[i].w, w[2], w[3]);
                }
                float* const to = &met[warp][m * 16 + g][j * 8 + 2 * q];
                to[0] = sum[0], to[1] = sum[1], to[8 * units] = sum[2], to[8 * units + 1] = sum[3];
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int item = threadIdx.x + 256 * i;
            to[i] = 0.0f;
            if (item >= ITEMS) continue;
#pragma unroll
            for (int w = 0; w < 8; ++w) to[i] += met[w][item / units][item % units];
        }
    };
    const auto place = [&](int i, long long& to) {  // of an item, in [batch, hidden]; whether there is such a place
        const int item = threadIdx.x + 256 * i, row = item / units, unit = unit0 + item % units;
        to = (long long)(first + row) * hidden + unit;
        return item < ITEMS && row < tile && first + row < batch && unit < hidden;
    };
    float extra[EACH], carried[EACH], cell[EACH], bias[EACH][4] = {};
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        long long here;
        const bool inside = place(i, here);
        extra[i] = inside ? float(grad_h_n[here]) : 0.0f;
        carried[i] = inside ? float(grad_c_n[here]) : 0.0f;
        cell[i] = inside ? cells[(time - 1ll) * batch * hidden + here] : 0.0f;
    }
#pragma unroll 1
    for (int t = time - 1; t >= 0; --t) {
        const long long step = (long long)t * batch * hidden;
        float from_out[EACH], returned[EACH];
        float4 of[EACH];
        float before[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            long long here;
            const bool inside = place(i, here);
            from_out[i] = inside ? float(grad_out[step + here]) : 0.0f;
            of[i] = inside ? reinterpret_cast<const float4*>(gate)[step + here] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            before[i] = !inside ? 0.0f : t > 0 ? cells[step - batch * hidden + here] : float(c0[here]);
            returned[i] = 0.0f;
        }
        if (t + 1 < time) through_weights(t + 1, returned);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            long long here;
            if (!place(i, here)) continue;
            const float grad = from_out[i] + returned[i] + extra[i];
            x_t* const to = back + ((long long)t * batch + here / hidden) * wide + here % hidden;
            float found[4];
            const float tanh_c = tanhf(cell[i]), in = of[i].x, keep = of[i].y, made = of[i].z, shown = of[i].w;
            const float of_c = carried[i] + grad * shown * (1.0f - tanh_c * tanh_c);
            found[0] = of_c * made * in * (1.0f - in);
            found[1] = of_c * before[i] * keep * (1.0f - keep);
            found[2] = of_c * in * (1.0f - made * made);
            found[3] = grad * tanh_c * shown * (1.0f - shown);
            carried[i] = of_c * keep, cell[i] = before[i], extra[i] = 0.0f;
#pragma unroll
            for (int kind = 0; kind < 4; ++kind) to[kind * hidden] = x_t(found[kind]), bias[i][kind] += found[kind];
        }
        __threadfence();  // by each thread, for what it wrote
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(arrived + group, 1);
    }
    float returned[EACH];
    through_weights(0, returned);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        long long here;
        if (!place(i, here)) continue;
        grad_h0[here] = x_t(returned[i] + extra[i]);
#pragma unroll
        for (int kind = 0; kind < 4; ++kind) bias_parts[here / hidden * wide + kind * hidden + here % hidden] = bias[i][kind];
        grad_c0[here] = x_t(carried[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256)
to_x(const x_t* __restrict__ back, const x_t* __restrict__ w_ih, x_t* __restrict__ grad_x) {
    const int row0 = blockIdx.x * 128, column0 = blockIdx.y * 64;
    Tile sum = {};
    multiply<false, true>(
        sum,
        [=](int step, int line, int piece) -> Source {
            const int row = min(row0 + line, rows - 1), k = step * DEEP + piece * 8;
            return {back + (long long)row * wide + (k < kx ? k : 0), k < kx};
        },
        [=](int step, int line, int piece) -> Source {
            const int k = step * DEEP + line, column = column0 + piece * 8;
            const bool inside = k < kx && column < input;
            return {w_ih + (inside ? (long long)k * input + column : 0), inside};
        },
        (kx + DEEP - 1) / DEEP);
    for_each(sum, [=](int line, int column, float one, float other) {
        const int row = row0 + line, first = column0 + column;
        if (row >= rows || first >= input) return;
        grad_x[(long long)row * input + first] = x_t(one), grad_x[(long long)row * input + first + 1] = x_t(other);
    });
}

// Both weights' gradients: the columns of x and then those of h.
extern "C" __global__ void __launch_bounds__(256)
to_weights(const x_t* __restrict__ back, const x_t* __restrict__ x, const x_t* __restrict__ h0, const x_t* __restrict__ out,
           float* __restrict__ weight_parts) {
    constexpr int OF_X = (input + 63) / 64, STEPS = (rows + DEEP - 1) / DEEP, SHARE = (STEPS + splits - 1) / splits;
    const bool of_x = blockIdx.y < OF_X;
    const int row0 = blockIdx.x * 128, column0 = (of_x ? blockIdx.y : blockIdx.y - OF_X) * 64, columns = of_x ? input : hidden;
    const int begin = blockIdx.z * SHARE, count = max(min(SHARE, STEPS - begin), 0);
    Tile sum = {};
    multiply<true, true>(
        sum,
        [=](int step, int line, int piece) -> Source {
            const int k = (begin + step) * DEEP + line, gate = row0 + piece * 8;
            const bool inside = k < rows && gate < kx;
            const int column = of_x ? gate : gate;
            return {back + (inside ? (long long)k * wide + column : 0), inside};
        },
        [=](int step, int line, int piece) -> Source {
            const int k = (begin + step) * DEEP + line, column = column0 + piece * 8;
            const bool inside = k < rows && column < columns;
            if (!inside) return {x, false};
            return {(of_x ? x + (long long)k * input : state(h0, out, k)) + column, true};
        },
        count);
    for_each(sum, [=](int line, int column, float one, float other) {
        const int gate = row0 + line, first = column0 + column;
        if (gate >= kx || first >= columns) return;
        float* const to = weight_parts + ((long long)blockIdx.z * kx + gate) * (input + hidden) + (of_x ? 0 : input) + first;
        to[0] = one, to[1] = other;
    });
}

extern "C" __global__ void __launch_bounds__(256)
add_up(const float* __restrict__ weight_parts, const float* __restrict__ bias_parts, x_t* __restrict__ grad_w_ih,
       x_t* __restrict__ grad_w_hh, x_t* __restrict__ grad_b_ih, x_t* __restrict__ grad_b_hh) {
    constexpr long long COUNT = (long long)kx * (input + hidden);
    const long long own = blockIdx.x * 256ll + threadIdx.x;
    float sum = 0.0f;
    if (own < COUNT) {
#pragma unroll
        for (int split = 0; split < splits; ++split) sum += weight_parts[split * COUNT + own];
        const int gate = int(own / (input + hidden)), column = int(own % (input + hidden));
        if (column < input) grad_w_ih[(long long)gate * input + column] = x_t(sum);
        else grad_w_hh[(long long)gate * hidden + column - input] = x_t(sum);
    } else if (own < COUNT + kx) {
        const int gate = int(own - COUNT);
        float of_h = 0.0f;
        for (int part = 0; part < batch; ++part) sum += bias_parts[part * wide + gate], of_h += bias_parts[part * wide + gate];
        grad_b_ih[gate] = x_t(sum), grad_b_hh[gate] = x_t(of_h);
    }
}
