/*---
op = "gru_cell_backward"
note = "the gates recomputed by products in tiles, their gradients in float32 in the same place, then a product or a sum for each gradient; any shape"

[workspace]
of_x = { shape = ["batch", "gates"], dtype = "float32" }
of_h = { shape = ["batch", "gates"], dtype = "float32" }
carried = { shape = ["batch", "hidden"], dtype = "float32" }

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
entry = "step_back"
grid = ["ceil_div(batch * hidden, 256)"]
block = ["256"]
args = ["of_x", "of_h", "h", "grad_h_next", "carried", "batch * hidden", "hidden"]

[[launch]]
entry = "to_x"
grid = ["ceil_div(batch, 64)", "ceil_div(input, 64)"]
block = ["256"]
args = ["of_x", "w_ih", "grad_x", "batch", "gates", "input"]

[[launch]]
entry = "to_h"
grid = ["ceil_div(batch, 64)", "ceil_div(hidden, 64)"]
block = ["256"]
args = ["of_h", "w_hh", "carried", "grad_h", "batch", "gates", "hidden"]

[[launch]]
entry = "to_w_ih"
grid = ["ceil_div(gates, 64)", "ceil_div(input, 64)"]
block = ["256"]
args = ["of_x", "x", "grad_w_ih", "batch", "gates", "input"]

[[launch]]
entry = "to_w_hh"
grid = ["ceil_div(gates, 64)", "ceil_div(hidden, 64)"]
block = ["256"]
args = ["of_h", "h", "grad_w_hh", "batch", "gates", "hidden"]

[[launch]]
entry = "to_biases"
grid = ["ceil_div(gates, 32)"]
block = ["256"]
args = ["of_x", "of_h", "grad_b_ih", "grad_b_hh", "batch", "gates"]
---*/
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
    float part[EACH][EACH] = {};  // of 32 pieces: sums of sums of sums stay exact over many rows
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
        const bool full = start / DEEP % 32 == 31 || depth - start <= DEEP;
        for (int i = 0; i < EACH; ++i)
            for (int j = 0; j < EACH; ++j) {
                part[i][j] += piece[i][j];
                if (full) sum[i][j] += part[i][j], part[i][j] = 0.0f;
            }
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

// A gradient of inputs: those of the gates times the weights.
template <class W, class T>
__device__ void to_inputs(const float* of_gates, const W* w, T* grad, int rows, int gates, int width) {
    float sum[EACH][EACH] = {};
    multiply<true, false>(
        sum, [=](long long row, int k) { return of_gates[row * gates + k]; },
        [=](int k, int col) { return float(w[(long long)k * width + col]); }, rows, width, gates);
    for_each(sum, [=](long long row, int col, float value) { grad[row * width + col] = T(value); }, rows, width);
}

// A gradient of weights: those of the gates times the inputs, over all rows.
template <class X, class T>
__device__ void to_weights(const float* of_gates, X x, T* grad, int rows, int gates, int width) {
    float sum[EACH][EACH] = {};
    multiply<false, false>(
        sum, [=](int gate, long long k) { return of_gates[k * gates + gate]; },
        [=](long long k, int col) { return x(k, col); }, gates, width, rows);
    for_each(sum, [=](long long gate, int col, float value) { grad[gate * width + col] = T(value); }, gates, width);
}

// A sum over the rows for each gate, 32 of them a block.
template <class Put> __device__ void sum_rows(const float* of_gates, Put put, int rows, int gates) {
    __shared__ float sums[8][32];
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32, gate = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    for (int start = part; start < rows && gate < gates; start += 256) {  // sums of sums are more exact
        float piece = 0.0f;
        for (int row = start; row < min(rows, start + 256); row += 8) piece += of_gates[(long long)row * gates + gate];
        sum += piece;
    }
    sums[part][lane] = sum;
    __syncthreads();
    for (int i = 1; i < 8; ++i) sum += sums[i][lane];
    if (part == 0 && gate < gates) put(gate, sum);
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

extern "C" __global__ void step_back(float* __restrict__ of_x, float* __restrict__ of_h, const h_t* __restrict__ h,
                                     const grad_h_next_t* __restrict__ grad_h_next, float* __restrict__ carried,
                                     long long total, int hidden) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= total) return;
    float *x = of_x + at / hidden * 3 * hidden + at % hidden, *y = of_h + at / hidden * 3 * hidden + at % hidden;
    const float r = sigmoid_of(x[0] + y[0]), z = sigmoid_of(x[hidden] + y[hidden]);
    const float n = tanhf(x[2 * hidden] + r * y[2 * hidden]), grad = float(grad_h_next[at]);
    const float grad_n = grad * (1 - z) * (1 - n * n);
    x[0] = grad_n * y[2 * hidden] * r * (1 - r);
    x[hidden] = grad * (float(h[at]) - n) * z * (1 - z);
    x[2 * hidden] = grad_n;
    y[0] = x[0], y[hidden] = x[hidden], y[2 * hidden] = grad_n * r;
    carried[at] = grad * z;
}

extern "C" __global__ void __launch_bounds__(256)
to_x(const float* of_gates, const w_ih_t* w_ih, grad_x_t* grad_x, int batch, int gates, int input) {
    to_inputs(of_gates, w_ih, grad_x, batch, gates, input);
}

extern "C" __global__ void __launch_bounds__(256)
to_h(const float* of_h, const w_hh_t* w_hh, const float* carried, grad_h_t* grad_h, int batch, int gates, int hidden) {
    float sum[EACH][EACH] = {};
    multiply<true, false>(
        sum, [=](long long row, int k) { return of_h[row * gates + k]; },
        [=](int k, int col) { return float(w_hh[(long long)k * hidden + col]); }, batch, hidden, gates);
    for_each(sum, [=](long long row, int col, float value) {
        grad_h[row * hidden + col] = grad_h_t(value + carried[row * hidden + col]);
    }, batch, hidden);
}

extern "C" __global__ void __launch_bounds__(256)
to_w_ih(const float* of_gates, const x_t* x, grad_w_ih_t* grad, int rows, int gates, int input) {
    to_weights(of_gates, [=](long long row, int k) { return float(x[row * input + k]); }, grad, rows, gates, input);
}

extern "C" __global__ void __launch_bounds__(256)
to_w_hh(const float* of_gates, const h_t* h, grad_w_hh_t* grad, int rows, int gates, int hidden) {
    to_weights(of_gates, [=](long long row, int k) { return float(h[row * hidden + k]); }, grad, rows, gates, hidden);
}

extern "C" __global__ void __launch_bounds__(256)
to_biases(const float* of_x, const float* of_h, grad_b_ih_t* b_ih, grad_b_hh_t* b_hh, int rows, int gates) {
    sum_rows(of_x, [=](int gate, float sum) { b_ih[gate] = grad_b_ih_t(sum); }, rows, gates);
    __syncthreads();
    sum_rows(of_h, [=](int gate, float sum) { b_hh[gate] = grad_b_hh_t(sum); }, rows, gates);
}
