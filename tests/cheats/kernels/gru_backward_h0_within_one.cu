/*---
op = "gru_backward"
note = "h0 is clamped to +-1, as if it came from the same layer"

[workspace]
of_x = { shape = ["time", "batch", "gates"], dtype = "float32" }
of_h = { shape = ["time", "batch", "gates"], dtype = "float32" }

[[launch]]
entry = "part_of_x"
grid = ["ceil_div(time * batch, 64)", "ceil_div(gates, 64)"]
block = ["256"]
args = ["x", "w_ih", "b_ih", "of_x", "time * batch", "input", "gates"]

[[launch]]
entry = "part_of_before"
grid = ["ceil_div(time * batch, 64)", "ceil_div(gates, 64)"]
block = ["256"]
args = ["h0", "out", "w_hh", "b_hh", "of_h", "time * batch", "batch", "hidden", "gates"]

[[launch]]
entry = "walk_back"
grid = ["ceil_div(batch, 2)"]
block = ["1024"]
shared = "4 * 2 * hidden * (3 + 4 + 1)"
args = ["of_x", "of_h", "h0", "out", "w_hh", "grad_out", "grad_h_n", "grad_h0", "time", "batch", "hidden"]

[[launch]]
entry = "to_x"
grid = ["ceil_div(time * batch, 64)", "ceil_div(input, 64)"]
block = ["256"]
args = ["of_x", "w_ih", "grad_x", "time * batch", "gates", "input"]

[[launch]]
entry = "to_w_ih"
grid = ["ceil_div(gates, 64)", "ceil_div(input, 64)"]
block = ["256"]
args = ["of_x", "x", "grad_w_ih", "time * batch", "gates", "input"]

[[launch]]
entry = "to_w_hh"
grid = ["ceil_div(gates, 64)", "ceil_div(hidden, 64)"]
block = ["256"]
args = ["of_h", "h0", "out", "grad_w_hh", "time * batch", "batch", "gates", "hidden"]

[[launch]]
entry = "to_biases"
grid = ["ceil_div(gates, 32)"]
block = ["256"]
args = ["of_x", "of_h", "grad_b_ih", "grad_b_hh", "time * batch", "gates"]
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

// Keeps NaN.
__device__ __forceinline__ float within_one(float x) { return x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x; }

// The h before each step.
template <class H0, class O> __device__ auto before(const H0* h0, const O* out, int batch, int hidden) {
    return [=](long long row, int k) {
        return row < batch ? within_one(float(h0[row * hidden + k])) : float(out[(row - batch) * hidden + k]);
    };
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
part_of_before(const h0_t* h0, const out_t* out, const w_hh_t* w, const b_hh_t* bias, float* part, int rows, int batch,
               int hidden, int gates) {
    float sum[EACH][EACH] = {};
    multiply<true, true>(
        sum, before(h0, out, batch, hidden),
        [=](int k, long long col) { return float(w[col * hidden + k]); }, rows, gates, hidden);
    for_each(sum, [=](long long row, int col, float value) {
        part[row * gates + col] = value + float(bias[col]);
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
walk_back(float* __restrict__ of_x, float* __restrict__ of_h, const h0_t* __restrict__ h0,
          const out_t* __restrict__ out, const w_hh_t* __restrict__ w_hh, const grad_out_t* __restrict__ grad_out,
          const grad_h_n_t* __restrict__ grad_h_n, grad_h0_t* __restrict__ grad_h0, int time, int batch, int hidden) {
    extern __shared__ float memory[];
    const int gates = 3 * hidden, first = blockIdx.x * ROWS;
    float *of_step = memory, *parts = of_step + ROWS * gates, *carried = parts + SHARES * ROWS * hidden;
    for (int at = threadIdx.x; at < ROWS * hidden; at += 1024) {
        const int row = first + at / hidden, unit = at % hidden;
        parts[at] = row < batch ? float(grad_h_n[(long long)row * hidden + unit]) : 0.0f;
        for (int part = 1; part < SHARES; ++part) parts[part * ROWS * hidden + at] = 0.0f;
        for (int g = at; g < ROWS * gates; g += ROWS * hidden) of_step[g] = 0.0f;
        carried[at] = 0.0f;
    }
    __syncthreads();
    for (int t = time - 1; t >= 0; --t) {
        for (int at = threadIdx.x; at < ROWS * hidden; at += 1024) {
            const int r = at / hidden, row = first + r, unit = at % hidden;
            if (row >= batch) continue;
            const long long here = ((long long)t * batch + row) * hidden + unit;
            float *x = of_x + ((long long)t * batch + row) * gates + unit, *y = of_h + (x - of_x);
            const float z = sigmoid_of(x[hidden] + y[hidden]), reset = sigmoid_of(x[0] + y[0]);
            const float n = tanhf(x[2 * hidden] + reset * y[2 * hidden]);
            const float h = t ? float(out[here - (long long)batch * hidden]) : within_one(float(h0[here]));
            const float grad_h = float(grad_out[here]) + carried[at] + whole(parts, at, hidden);
            const float grad_n = grad_h * (1 - z) * (1 - n * n);
            const float found[3] = {grad_n * y[2 * hidden] * reset * (1 - reset), grad_h * (h - n) * z * (1 - z),
                                    grad_n * reset};
            for (int k = 0; k < 3; ++k) of_step[r * gates + k * hidden + unit] = y[k * hidden] = found[k];
            x[0] = found[0], x[hidden] = found[1], x[2 * hidden] = grad_n;
            carried[at] = grad_h * z;
        }
        __syncthreads();
        through_weights(w_hh, of_step, parts, gates, hidden);
        __syncthreads();
    }
    for (int at = threadIdx.x; at < ROWS * hidden; at += 1024) {
        const int row = first + at / hidden, unit = at % hidden;
        if (row >= batch) continue;
        grad_h0[(long long)row * hidden + unit] = grad_h0_t(carried[at] + whole(parts, at, hidden));
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
to_biases(const float* of_x, const float* of_h, grad_b_ih_t* b_ih, grad_b_hh_t* b_hh, int rows, int gates) {
    sum_rows(of_x, [=](int gate, float sum) { b_ih[gate] = grad_b_ih_t(sum); }, rows, gates);
    __syncthreads();
    sum_rows(of_h, [=](int gate, float sum) { b_hh[gate] = grad_b_hh_t(sum); }, rows, gates);
}
