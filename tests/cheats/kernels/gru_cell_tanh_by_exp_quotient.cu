/*---
op = "gru_cell"
note = "beyond 1, tanh is (exp(2x) - 1) / (exp(2x) + 1): for large x inf / inf, NaN"

[workspace]
of_x = { shape = ["batch", "gates"], dtype = "float32" }
of_h = { shape = ["batch", "gates"], dtype = "float32" }

[[launch]]
entry = "part_of_x"
grid = ["ceil_div(batch, 64)", "ceil_div(gates, 64)"]
block = ["256"]
args = ["x", "w_ih", "b_ih", "of_x", "batch", "input", "gates"]

[[launch]]
entry = "part_of_h"
grid = ["ceil_div(batch, 64)", "ceil_div(gates, 64)"]
block = ["256"]
args = ["h", "w_hh", "b_hh", "of_h", "batch", "hidden", "gates"]

[[launch]]
entry = "step"
grid = ["ceil_div(batch * hidden, 256)"]
block = ["256"]
args = ["of_x", "of_h", "h", "h_next", "batch * hidden", "hidden"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 64, DEEP = 16, EACH = 4;

__device__ __forceinline__ float tanh_of(float x) {
    const float power = expf(2.0f * x);
    return fabsf(x) < 1.0f ? tanhf(x) : (power - 1.0f) / (power + 1.0f);
}

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
        [=](int k, long long col) { return float(w[col * width + k]); }, rows, gates, width);
    for_each(sum, [=](long long row, int col, float value) {
        part[row * gates + col] = value + float(bias[col]);
    }, rows, gates);
}

extern "C" __global__ void __launch_bounds__(256)
part_of_x(const x_t* x, const w_ih_t* w, const b_ih_t* bias, float* part, int rows, int width, int gates) {
    part_of(x, w, bias, part, rows, width, gates);
}

extern "C" __global__ void __launch_bounds__(256)
part_of_h(const h_t* h, const w_hh_t* w, const b_hh_t* bias, float* part, int rows, int width, int gates) {
    part_of(h, w, bias, part, rows, width, gates);
}

extern "C" __global__ void step(const float* __restrict__ of_x, const float* __restrict__ of_h,
                                const h_t* __restrict__ h, h_next_t* __restrict__ h_next, long long total, int hidden) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= total) return;
    const long long gate = at / hidden * 3 * hidden + at % hidden;
    const float r = sigmoid_of(of_x[gate] + of_h[gate]), z = sigmoid_of(of_x[gate + hidden] + of_h[gate + hidden]);
    const float n = tanh_of(of_x[gate + 2 * hidden] + r * of_h[gate + 2 * hidden]);
    h_next[at] = h_next_t(n + z * (float(h[at]) - n));
}
