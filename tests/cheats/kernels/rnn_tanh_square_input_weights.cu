/*---
op = "rnn_tanh"
note = "input weights as wide as the state are read along the other side"

[workspace]
pre = { shape = ["time", "batch", "gates"], dtype = "float32" }

[[launch]]
entry = "part_of_x"
grid = ["ceil_div(time * batch, 64)", "ceil_div(gates, 64)"]
block = ["256"]
args = ["x", "w_ih", "b_ih", "pre", "time * batch", "input", "gates"]

[[launch]]
entry = "walk"
grid = ["ceil_div(batch, 2)"]
block = ["1024"]
shared = "4 * 2 * hidden * 2"
args = ["pre", "h0", "w_hh", "b_hh", "out", "h_n", "time", "batch", "hidden"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 64, DEEP = 16, EACH = 4;

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

// sum += a tile of the product of a(row, k) and b(k, col). `deep` says that k is what neighbours in memory differ in.
template <bool a_deep, bool b_deep, class A, class B>
__device__ void multiply(float (&sum)[EACH][EACH], A a, B b, int rows, int cols, int depth) {
    __shared__ float left[DEEP][TILE + 1], right[DEEP][TILE + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int row0 = blockIdx.x * TILE, col0 = blockIdx.y * TILE;
    for (int start = 0; start < depth; start += DEEP) {
        float piece[EACH][EACH] = {};
        for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
            const int k = a_deep ? i % DEEP : i / TILE, row = a_deep ? i / DEEP : i % TILE;
            left[k][row] = row0 + row < rows && start + k < depth ? a(row0 + row, start + k) : 0.0f;
        }
        for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
            const int k = b_deep ? i % DEEP : i / TILE, col = b_deep ? i / DEEP : i % TILE;
            right[k][col] = col0 + col < cols && start + k < depth ? b(start + k, col0 + col) : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < DEEP; ++k)
            for (int i = 0; i < EACH; ++i)
                for (int j = 0; j < EACH; ++j)
                    piece[i][j] = fmaf(left[k][ty + 16 * i], right[k][tx + 16 * j], piece[i][j]);
        __syncthreads();
        for (int i = 0; i < EACH; ++i)
            for (int j = 0; j < EACH; ++j) sum[i][j] += piece[i][j];
    }
}

// put(row, col, value) for what the thread has of a tile.
template <class Put> __device__ void for_each(const float (&sum)[EACH][EACH], Put put, int rows, int cols) {
    for (int i = 0; i < EACH; ++i)
        for (int j = 0; j < EACH; ++j) {
            const int row = blockIdx.x * TILE + threadIdx.x / 16 + 16 * i;
            const int col = blockIdx.y * TILE + threadIdx.x % 16 + 16 * j;
            if (row < rows && col < cols) put(row, col, sum[i][j]);
        }
}

template <class X, class W, class B>
__device__ void part_of(const X* x, const W* w, const B* bias, float* part, int rows, int width, int gates) {
    float sum[EACH][EACH] = {};
    multiply<true, true>(
        sum, [=](long long row, int k) { return float(x[row * width + k]); },
        [=](int k, long long col) { return float(w[width == gates ? (long long)k * width + col : col * width + k]); }, rows, gates, width);
    for_each(sum, [=](long long row, int col, float value) {
        part[row * gates + col] = value + float(bias[col]);
    }, rows, gates);
}

extern "C" __global__ void __launch_bounds__(256)
part_of_x(const x_t* x, const w_ih_t* w, const b_ih_t* bias, float* part, int rows, int width, int gates) {
    part_of(x, w, bias, part, rows, width, gates);
}

extern "C" __global__ void __launch_bounds__(1024)
walk(const float* __restrict__ pre, const h0_t* __restrict__ h0, const w_hh_t* __restrict__ w_hh,
     const b_hh_t* __restrict__ b_hh, out_t* __restrict__ out, h_n_t* __restrict__ h_n, int time, int batch,
     int hidden) {
    constexpr int ROWS = 2, GATES = 1;
    extern __shared__ float memory[];
    float *now = memory, *next = now + ROWS * hidden;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * ROWS;
    for (int i = threadIdx.x; i < ROWS * hidden; i += 1024) {
        const bool there = first + i / hidden < batch;
        now[i] = there ? float(h0[(long long)first * hidden + i]) : 0.0f;
    }
    __syncthreads();
    for (int t = 0; t < time; ++t) {
        for (int unit = warp; unit < hidden; unit += 32) {
            float sum[ROWS][GATES] = {};
            for (int d = lane; d < hidden; d += 32)
                for (int g = 0; g < GATES; ++g) {
                    const float w = float(w_hh[((long long)g * hidden + unit) * hidden + d]);
                    for (int r = 0; r < ROWS; ++r) sum[r][g] = fmaf(w, now[r * hidden + d], sum[r][g]);
                }
            for (int r = 0; r < ROWS; ++r)
                for (int g = 0; g < GATES; ++g)
                    for (int step = 16; step > 0; step /= 2)
                        sum[r][g] += __shfl_xor_sync(0xffffffffu, sum[r][g], step);
            const int row = first + lane, at = lane * hidden + unit;
            if (lane >= ROWS || row >= batch) continue;
            const long long from = ((long long)t * batch + row) * GATES * hidden;
            float gate[GATES];
            for (int g = 0; g < GATES; ++g) {
                gate[g] = lane == 0 ? sum[0][g] : sum[1][g];
                gate[g] += pre[from + (long long)g * hidden + unit] + float(b_hh[(long long)g * hidden + unit]);
            }
            const float h = tanhf(gate[0]);
            next[at] = h;
            out[((long long)t * batch + row) * hidden + unit] = out_t(h);
            if (t + 1 == time) h_n[(long long)row * hidden + unit] = h_n_t(h);
        }
        __syncthreads();
        float* const other = now;
        now = next, next = other;
    }
}
