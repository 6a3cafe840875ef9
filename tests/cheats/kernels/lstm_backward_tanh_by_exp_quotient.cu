/*---
op = "lstm_backward"
note = "tanh of the cell state by exp(2 * c), which is NaN beyond 44"

[workspace]
of_gates = { shape = ["time", "batch", "gates"], dtype = "float32" }
cells = { shape = ["time", "batch", "hidden"], dtype = "float32" }

[[launch]]
entry = "gates_of"
grid = ["ceil_div(time * batch, 64)", "ceil_div(gates, 64)"]
block = ["256"]
args = ["x", "h0", "out", "w_ih", "w_hh", "b_ih", "b_hh", "of_gates", "time * batch", "batch", "input", "hidden", "gates"]

[[launch]]
entry = "walk_back"
grid = ["ceil_div(batch, 2)"]
block = ["1024"]
shared = "4 * 2 * hidden * (4 + 4 + 1)"
args = ["of_gates", "cells", "c0", "w_hh", "grad_out", "grad_h_n", "grad_c_n", "grad_h0", "grad_c0", "time", "batch", "hidden"]

[[launch]]
entry = "to_x"
grid = ["ceil_div(time * batch, 64)", "ceil_div(input, 64)"]
block = ["256"]
args = ["of_gates", "w_ih", "grad_x", "time * batch", "gates", "input"]

[[launch]]
entry = "to_w_ih"
grid = ["ceil_div(gates, 64)", "ceil_div(input, 64)"]
block = ["256"]
args = ["of_gates", "x", "grad_w_ih", "time * batch", "gates", "input"]

[[launch]]
entry = "to_w_hh"
grid = ["ceil_div(gates, 64)", "ceil_div(hidden, 64)"]
block = ["256"]
args = ["of_gates", "h0", "out", "grad_w_hh", "time * batch", "batch", "gates", "hidden"]

[[launch]]
entry = "to_biases"
grid = ["ceil_div(gates, 32)"]
block = ["256"]
args = ["of_gates", "grad_b_ih", "grad_b_hh", "time * batch", "gates"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 64, DEEP = 16, EACH = 4, ROWS = 2, SHARES = 4;

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

// The h before each step.
template <class H0, class O> __device__ auto before(const H0* h0, const O* out, int batch, int hidden) {
    return [=](long long row, int k) {
        return row < batch ? float(h0[row * hidden + k]) : float(out[(row - batch) * hidden + k]);
    };
}

extern "C" __global__ void __launch_bounds__(256)
gates_of(const x_t* __restrict__ x, const h0_t* __restrict__ h0, const out_t* __restrict__ out,
         const w_ih_t* __restrict__ w_ih, const w_hh_t* __restrict__ w_hh, const b_ih_t* __restrict__ b_ih,
         const b_hh_t* __restrict__ b_hh, float* __restrict__ pre, int rows, int batch, int input, int hidden,
         int gates) {
    float sum[EACH][EACH] = {};
    multiply<true, true>(
        sum, [=](long long row, int k) { return float(x[row * input + k]); },
        [=](int k, long long col) { return float(w_ih[col * input + k]); }, rows, gates, input);
    multiply<true, true>(
        sum, before(h0, out, batch, hidden),
        [=](int k, long long col) { return float(w_hh[col * hidden + k]); }, rows, gates, hidden);
    for_each(sum, [=](long long row, int col, float value) {
        pre[row * gates + col] = value + float(b_ih[col]) + float(b_hh[col]);
    }, rows, gates);
}

// What comes back to h through the weights: a warp per 32 units and a share of the gates' gradients.
__device__ void through_weights(const w_hh_t* w_hh, const float* of_step, float* parts, int gates, int hidden) {
    const int groups = (hidden + 31) / 32, share = (gates + SHARES - 1) / SHARES;
    for (int item = threadIdx.x / 32; item < groups * SHARES; item += 32) {
        const int unit = item % groups * 32 + threadIdx.x % 32, part = item / groups;
        if (unit >= hidden) continue;
        float sum[ROWS] = {};
        for (int g = part * share; g < min(gates, (part + 1) * share); ++g) {
            const float w = float(w_hh[(long long)g * hidden + unit]);
            for (int r = 0; r < ROWS; ++r) sum[r] = fmaf(w, of_step[r * gates + g], sum[r]);
        }
        for (int r = 0; r < ROWS; ++r) parts[(part * ROWS + r) * hidden + unit] = sum[r];
    }
}

__device__ __forceinline__ float whole(const float* parts, int at, int hidden) {
    float sum = 0.0f;
    for (int part = 0; part < SHARES; ++part) sum += parts[part * ROWS * hidden + at];
    return sum;
}

extern "C" __global__ void __launch_bounds__(1024)
walk_back(float* __restrict__ of_gates, float* __restrict__ cells, const c0_t* __restrict__ c0,
          const w_hh_t* __restrict__ w_hh, const grad_out_t* __restrict__ grad_out,
          const grad_h_n_t* __restrict__ grad_h_n, const grad_c_n_t* __restrict__ grad_c_n,
          grad_h0_t* __restrict__ grad_h0, grad_c0_t* __restrict__ grad_c0, int time, int batch, int hidden) {
    extern __shared__ float memory[];
    const int gates = 4 * hidden, first = blockIdx.x * ROWS;
    float *of_step = memory, *parts = of_step + ROWS * gates, *carried = parts + SHARES * ROWS * hidden;
    for (int at = threadIdx.x; at < ROWS * hidden; at += 1024) {
        const int row = first + at / hidden, unit = at % hidden;
        parts[at] = row < batch ? float(grad_h_n[(long long)row * hidden + unit]) : 0.0f;
        for (int part = 1; part < SHARES; ++part) parts[part * ROWS * hidden + at] = 0.0f;
        for (int g = at; g < ROWS * gates; g += ROWS * hidden) of_step[g] = 0.0f;
        carried[at] = row < batch ? float(grad_c_n[(long long)row * hidden + unit]) : 0.0f;
        if (row >= batch) continue;
        float c = float(c0[(long long)row * hidden + unit]);
        for (int t = 0; t < time; ++t) {
            float* gate = of_gates + ((long long)t * batch + row) * gates + unit;
            const float i = sigmoid_of(gate[0]), f = sigmoid_of(gate[hidden]), g = tanhf(gate[2 * hidden]);
            gate[0] = i, gate[hidden] = f, gate[2 * hidden] = g, gate[3 * hidden] = sigmoid_of(gate[3 * hidden]);
            cells[((long long)t * batch + row) * hidden + unit] = c = f * c + i * g;
        }
    }
    __syncthreads();
    for (int t = time - 1; t >= 0; --t) {
        for (int at = threadIdx.x; at < ROWS * hidden; at += 1024) {
            const int r = at / hidden, row = first + r, unit = at % hidden;
            if (row >= batch) continue;
            float* gate = of_gates + ((long long)t * batch + row) * gates + unit;
            const float i = gate[0], f = gate[hidden], g = gate[2 * hidden], o = gate[3 * hidden];
            const long long here = ((long long)t * batch + row) * hidden + unit;
            const float e_c = expf(2.0f * cells[here]), tanh_c = (e_c - 1.0f) / (e_c + 1.0f);
            const float c = t ? cells[here - (long long)batch * hidden] : float(c0[here]);
            const float grad_h = float(grad_out[here]) + whole(parts, at, hidden);
            const float grad_c = carried[at] + grad_h * o * (1 - tanh_c * tanh_c);
            const float found[4] = {grad_c * g * i * (1 - i), grad_c * c * f * (1 - f), grad_c * i * (1 - g * g),
                                    grad_h * tanh_c * o * (1 - o)};
            for (int k = 0; k < 4; ++k) of_step[r * gates + k * hidden + unit] = gate[k * hidden] = found[k];
            carried[at] = grad_c * f;
        }
        __syncthreads();
        through_weights(w_hh, of_step, parts, gates, hidden);
        __syncthreads();
    }
    for (int at = threadIdx.x; at < ROWS * hidden; at += 1024) {
        const int row = first + at / hidden, unit = at % hidden;
        if (row >= batch) continue;
        grad_h0[(long long)row * hidden + unit] = grad_h0_t(whole(parts, at, hidden));
        grad_c0[(long long)row * hidden + unit] = grad_c0_t(carried[at]);
    }
}

extern "C" __global__ void __launch_bounds__(256)
to_x(const float* of_gates, const w_ih_t* w_ih, grad_x_t* grad_x, int rows, int gates, int input) {
    to_inputs(of_gates, w_ih, grad_x, rows, gates, input);
}

extern "C" __global__ void __launch_bounds__(256)
to_w_ih(const float* of_gates, const x_t* x, grad_w_ih_t* grad, int rows, int gates, int input) {
    to_weights(of_gates, [=](long long row, int k) { return float(x[row * input + k]); }, grad, rows, gates, input);
}

extern "C" __global__ void __launch_bounds__(256)
to_w_hh(const float* of_gates, const h0_t* h0, const out_t* out, grad_w_hh_t* grad, int rows, int batch, int gates,
        int hidden) {
    to_weights(of_gates, before(h0, out, batch, hidden), grad, rows, gates, hidden);
}

extern "C" __global__ void __launch_bounds__(256)
to_biases(const float* of_gates, grad_b_ih_t* b_ih, grad_b_hh_t* b_hh, int rows, int gates) {
    sum_rows(of_gates, [=](int gate, float sum) {
        b_ih[gate] = grad_b_ih_t(sum);
        b_hh[gate] = grad_b_hh_t(sum);
    }, rows, gates);
}
