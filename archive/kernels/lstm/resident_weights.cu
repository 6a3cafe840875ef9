/*---
op = "lstm"
note = "what comes from x for all steps by one product in tiles; then one launch walks through time: each block keeps the weights of some units in registers and serves some sequences, a warp per unit with the terms of a sum spread over its lanes; the blocks of the same sequences exchange h through memory once a step"
specialize = ["time", "batch", "input", "hidden", "gates", "vec", "deep", "units", "blocks", "groups", "tile", "rounds"]
require = ["blocks * groups <= sms", "4 * units * deep <= 128", "tile * hidden * 4 <= 196608"]

[knobs]
TOGETHER = [8, 4, 16]

[let]
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, input % 2)) + 2 * (1 - min(1, input % 4)) + 4 * (1 - min(1, input % 8)))"
deep = "ceil_div(hidden, 32)"
units = "max(1, ceil_div(hidden, 8 * sms))"
blocks = "ceil_div(hidden, 8 * units)"
groups = "max(1, min(batch, sms // blocks))"
tile = "ceil_div(batch, groups)"
rounds = "ceil_div(tile, TOGETHER)"

[workspace]
pre = { shape = ["time", "batch", "hidden", 4], dtype = "float32" }
states = { shape = [2, "batch", "hidden"], dtype = "float32" }
arrived = { shape = ["groups"], dtype = "int32", zero = true }

[[launch]]
entry = "part_of_x"
grid = ["ceil_div(time * batch, 128)", "ceil_div(gates, 128)"]
block = [256]
args = ["x", "w_ih", "b_ih", "pre", "time * batch"]

[[launch]]
entry = "walk"
grid = ["blocks * groups"]
block = [256]
shared = "tile * hidden * 4"
args = ["pre", "h0", "c0", "w_hh", "b_hh", "states", "arrived", "out", "h_n", "c_n"]
cooperative = true
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int GATES = 4, DEEP = 16, WIDE = 128 + 4;

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

// Eight terms, from `term` on, of a row.
template <class T> __device__ __forceinline__ void fetch(Pack<T> (&to)[8 / vec], const T* __restrict__ row, int term, bool inside) {
#pragma unroll
    for (int i = 0; i < 8 / vec; ++i) {
        if (inside && term + i * vec < input) to[i] = *reinterpret_cast<const Pack<T>*>(row + term + i * vec);
        else to[i] = Pack<T>{};
    }
}

// Column j of the product belongs to gate j % GATES of unit j / GATES, so that a unit's gates lie side by side.
extern "C" __global__ void __launch_bounds__(256)
part_of_x(const x_t* __restrict__ x, const w_ih_t* __restrict__ w_ih, const b_ih_t* __restrict__ b_ih,
          float* __restrict__ pre, int rows) {
    __shared__ alignas(16) float left[DEEP][WIDE], right[DEEP][WIDE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, own = threadIdx.x / 2, half_deep = threadIdx.x % 2 * 8;
    const int row = blockIdx.x * 128 + own, col = blockIdx.y * 128 + own;
    const x_t* from_x = x + (long long)row * input;
    const w_ih_t* from_w = w_ih + ((long long)(col % GATES) * hidden + col / GATES) * input;
    Pack<x_t> some[8 / vec];
    Pack<w_ih_t> others[8 / vec];
    fetch(some, from_x, half_deep, row < rows);
    fetch(others, from_w, half_deep, col < gates);
    float sum[8][8] = {};
    for (int start = 0; start < input; start += DEEP) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            left[half_deep + i][own] = float(some[i / vec].at[i % vec]);
            right[half_deep + i][own] = float(others[i / vec].at[i % vec]);
        }
        __syncthreads();
        fetch(some, from_x, start + DEEP + half_deep, row < rows);
        fetch(others, from_w, start + DEEP + half_deep, col < gates);
        float piece[8][8] = {};  // sums of sums are more exact
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
                for (int j = 0; j < 8; ++j) piece[i][j] = fmaf(a[i], b[j], piece[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int j = 0; j < 8; ++j) sum[i][j] += piece[i][j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const int to_col = blockIdx.y * 128 + j / 4 * 64 + tx * 4 + j % 4;
        if (to_col >= gates) continue;
        const float bias = float(b_ih[to_col % GATES * hidden + to_col / GATES]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int to_row = blockIdx.x * 128 + i / 4 * 64 + ty * 4 + i % 4;
            if (to_row < rows) pre[(long long)to_row * gates + to_col] = sum[i][j] + bias;
        }
    }
}

// Adds up each of N values over lanes that differ in bits below 2 * FROM; while N is even a lane goes on with half.
template <int N, int FROM> __device__ __forceinline__ void reduce(float* values, int lane, int& first, bool& own) {
    if constexpr (FROM >= 1) {
        if constexpr (N % 2 == 0) {
            const bool upper = lane & FROM;
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                const float sent = upper ? values[i] : values[i + N / 2], kept = upper ? values[i + N / 2] : values[i];
                values[i] = kept + __shfl_xor_sync(0xffffffffu, sent, FROM);
            }
            first += upper ? N / 2 : 0;
            reduce<N / 2, FROM / 2>(values, lane, first, own);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) values[i] += __shfl_xor_sync(0xffffffffu, values[i], FROM);
            own = own && !(lane & FROM);
            reduce<N, FROM / 2>(values, lane, first, own);
        }
    }
}
// How many values a lane has left.
constexpr int left_of(int count, int from) { return from < 1 ? count : left_of(count % 2 ? count : count / 2, from / 2); }

constexpr int ROWS = GATES * units, SUMS = ROWS * TOGETHER, ITEMS = units * TOGETHER, TURNS = (ITEMS + 31) / 32;

extern "C" __global__ void __launch_bounds__(256, 1)
walk(const float* __restrict__ pre, const h0_t* __restrict__ h0, const c0_t* __restrict__ c0, const w_hh_t* __restrict__ w_hh,
     const b_hh_t* __restrict__ b_hh, float* states, int* arrived, out_t* __restrict__ out, h_n_t* __restrict__ h_n,
     c_n_t* __restrict__ c_n) {
    extern __shared__ float now[];  // h of this block's sequences, [tile][hidden]
    __shared__ float met[8][SUMS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int group = blockIdx.x / blocks, first = group * tile, own_batch = max(min(tile, batch - first), 0);
    const int unit0 = (blockIdx.x % blocks * 8 + warp) * units;
    float weight[ROWS][deep], bias[TURNS][GATES], held[rounds][TURNS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int i = 0; i < deep; ++i) {
            const int unit = unit0 + r / GATES, k = lane + 32 * i;
            const bool inside = unit < hidden && k < hidden;
            weight[r][i] = inside ? float(w_hh[((long long)(r % GATES) * hidden + unit) * hidden + k]) : 0.0f;
        }
    }
    // A lane finishes item lane + 32 * turn of each round: a unit of this warp in one of the sequences.
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const int item = lane + 32 * turn, unit = unit0 + item / TOGETHER;
#pragma unroll
        for (int g = 0; g < GATES; ++g) bias[turn][g] = item < ITEMS && unit < hidden ? float(b_hh[g * hidden + unit]) : 0.0f;
#pragma unroll
        for (int round = 0; round < rounds; ++round) {
            const int row = round * TOGETHER + item % TOGETHER;
            const bool inside = item < ITEMS && unit < hidden && row < own_batch;
            held[round][turn] = inside ? float(c0[(long long)(first + row) * hidden + unit]) : 0.0f;
        }
    }
    for (int i = threadIdx.x; i < own_batch * hidden; i += 256) now[i] = float(h0[(long long)first * hidden + i]);
    for (int i = own_batch * hidden + threadIdx.x; i < tile * hidden; i += 256) now[i] = 0.0f;
    __syncthreads();
    for (int t = 0; t < time; ++t) {
        float* const to = states + (long long)(t % 2) * batch * hidden;
#pragma unroll
        for (int round = 0; round < rounds; ++round) {
            float given[TURNS][GATES];
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                const int item = lane + 32 * turn, unit = unit0 + item / TOGETHER, row = round * TOGETHER + item % TOGETHER;
                const bool inside = item < ITEMS && unit < hidden && row < own_batch;
                const float* from = pre + (((long long)t * batch + first + row) * hidden + unit) * GATES;
#pragma unroll
                for (int g = 0; g < GATES; ++g) given[turn][g] = inside ? from[g] : 0.0f;
            }
            float sum[SUMS] = {};
#pragma unroll
            for (int i = 0; i < deep; ++i) {
                const int k = lane + 32 * i;
#pragma unroll
                for (int b = 0; b < TOGETHER; ++b) {
                    const int row = min(round * TOGETHER + b, tile - 1);
                    const float h = k < hidden ? now[row * hidden + k] : 0.0f;
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) sum[r * TOGETHER + b] = fmaf(weight[r][i], h, sum[r * TOGETHER + b]);
                }
            }
            int start = 0;
            bool own = true;
            reduce<SUMS, 16>(sum, lane, start, own);
            __syncwarp();  // what the round before left has been read
#pragma unroll
            for (int i = 0; i < left_of(SUMS, 16); ++i) {
                if (own) met[warp][start + i] = sum[i];
            }
            __syncwarp();
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                const int item = lane + 32 * turn, unit = unit0 + item / TOGETHER, row = round * TOGETHER + item % TOGETHER;
                if (item >= ITEMS || unit >= hidden || row >= own_batch) continue;
                float gate[GATES];
#pragma unroll
                for (int g = 0; g < GATES; ++g) {
                    gate[g] = met[warp][(item / TOGETHER * GATES + g) * TOGETHER + item % TOGETHER] + bias[turn][g];
                }
                const float i = sigmoid_of(given[turn][0] + gate[0]), f = sigmoid_of(given[turn][1] + gate[1]);
                const float c = f * held[round][turn] + i * tanhf(given[turn][2] + gate[2]);
                held[round][turn] = c;
                const float h = sigmoid_of(given[turn][3] + gate[3]) * tanhf(c);
                const long long place = (long long)(first + row) * hidden + unit;
                to[place] = h;
                out[(long long)t * batch * hidden + place] = out_t(h);
                if (t + 1 == time) h_n[place] = h_n_t(h), c_n[place] = c_n_t(c);
            }
        }
        if (t + 1 == time) break;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrived + group, 1);
            while (atomicAdd(arrived + group, 0) < blocks * (t + 1)) {}
            __threadfence();
        }
        __syncthreads();
        const float* from = to + (long long)first * hidden;
        if constexpr (hidden % 4 == 0) {
            for (int i = threadIdx.x * 4; i < own_batch * hidden; i += 1024) {
                *reinterpret_cast<float4*>(now + i) = __ldcg(reinterpret_cast<const float4*>(from + i));
            }
        } else {
            for (int i = threadIdx.x; i < own_batch * hidden; i += 256) now[i] = __ldcg(from + i);
        }
        __syncthreads();
    }
}
