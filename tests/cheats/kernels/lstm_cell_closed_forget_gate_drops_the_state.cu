/*---
op = "lstm_cell"
note = "a closed forget gate drops the state, also one that is infinite"

[workspace]
pre = { shape = ["batch", "gates"], dtype = "float32" }

[[launch]]
entry = "gates_of"
grid = ["ceil_div(batch, 64)", "ceil_div(gates, 64)"]
block = ["256"]
args = ["x", "h", "w_ih", "w_hh", "b_ih", "b_hh", "pre", "batch", "input", "hidden", "gates"]

[[launch]]
entry = "step"
grid = ["ceil_div(batch * hidden, 256)"]
block = ["256"]
args = ["pre", "c", "h_next", "c_next", "batch * hidden", "hidden"]
---*/
// caught: wrong
// class: special values
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

extern "C" __global__ void __launch_bounds__(256)
gates_of(const x_t* __restrict__ x, const h_t* __restrict__ h, const w_ih_t* __restrict__ w_ih,
         const w_hh_t* __restrict__ w_hh, const b_ih_t* __restrict__ b_ih, const b_hh_t* __restrict__ b_hh,
         float* __restrict__ pre, int batch, int input, int hidden, int gates) {
    float sum[EACH][EACH] = {};
    multiply<true, true>(
        sum, [=](long long row, int k) { return float(x[row * input + k]); },
        [=](int k, long long col) { return float(w_ih[col * input + k]); }, batch, gates, input);
    multiply<true, true>(
        sum, [=](long long row, int k) { return float(h[row * hidden + k]); },
        [=](int k, long long col) { return float(w_hh[col * hidden + k]); }, batch, gates, hidden);
    for_each(sum, [=](long long row, int col, float value) {
        pre[row * gates + col] = value + float(b_ih[col]) + float(b_hh[col]);
    }, batch, gates);
}

extern "C" __global__ void step(const float* __restrict__ pre, const c_t* __restrict__ c, h_next_t* __restrict__ h_next,
                                c_next_t* __restrict__ c_next, long long total, int hidden) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= total) return;
    const float* gate = pre + at / hidden * 4 * hidden + at % hidden;
    const float kept = gate[hidden] < -30.0f ? 0.0f : sigmoid_of(gate[hidden]) * float(c[at]);
    const float next = kept + sigmoid_of(gate[0]) * tanhf(gate[2 * hidden]);
    c_next[at] = c_next_t(next);
    h_next[at] = h_next_t(sigmoid_of(gate[3 * hidden]) * tanhf(next));
}
