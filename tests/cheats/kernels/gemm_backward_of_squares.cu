/*---
op = "gemm_backward"
note = "with all dims equal, multiplies by b instead of its transpose"

[knobs]
ROWS = [8, 4]
COLS = [4, 8]
DEPTH = [16, 8, 32]

[[launch]]
entry = "gradient_of_a"
grid = ["ceil_div(k, 16 * COLS)", "ceil_div(m, 16 * ROWS)"]
block = [256]
args = ["grad_out", "b", "grad_a", "m", "n", "k"]

[[launch]]
entry = "gradient_of_b"
grid = ["ceil_div(n, 16 * COLS)", "ceil_div(k, 16 * ROWS)"]
block = [256]
args = ["grad_out", "a", "grad_b", "m", "n", "k"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int M = 16 * ROWS, N = 16 * COLS;

// A piece of one operand, DEPTH terms of SIZE sums. ALONG: the dim summed over is the last in memory.
template <int SIZE, bool ALONG, typename T>
__device__ __forceinline__ void load(float (*tile)[SIZE + 1], const T* __restrict__ from, int first, int count,
                                     int begin, int terms) {
#pragma unroll
    for (int i = threadIdx.x; i < SIZE * DEPTH; i += 256) {
        const int at = ALONG ? i / DEPTH : i % SIZE, depth = ALONG ? i % DEPTH : i / SIZE;
        const long long row = ALONG ? first + at : begin + depth, col = ALONG ? begin + depth : first + at;
        const bool inside = first + at < count && begin + depth < terms;
        tile[depth][at] = inside ? float(from[row * (ALONG ? terms : count) + col]) : 0.0f;
    }
}

// Adds up the block's tile of the product; a thread has every 16th row and column of it.
template <bool A_ALONG, bool B_ALONG, typename A, typename B>
__device__ __forceinline__ void multiply(float (&sums)[ROWS][COLS], const A* __restrict__ a, const B* __restrict__ b,
                                         int m, int n, int terms) {
    __shared__ float a_tile[DEPTH][M + 1], b_tile[DEPTH][N + 1];
    for (int begin = 0; begin < terms; begin += DEPTH) {
        load<M, A_ALONG>(a_tile, a, blockIdx.y * M, m, begin, terms);
        load<N, B_ALONG>(b_tile, b, blockIdx.x * N, n, begin, terms);
        __syncthreads();
        float parts[ROWS][COLS] = {};  // added up on their own: a single long chain would gather roundings
#pragma unroll
        for (int depth = 0; depth < DEPTH; ++depth) {
            float left[ROWS], right[COLS];
            for (int i = 0; i < ROWS; ++i) left[i] = a_tile[depth][threadIdx.x / 16 + 16 * i];
            for (int j = 0; j < COLS; ++j) right[j] = b_tile[depth][threadIdx.x % 16 + 16 * j];
            for (int i = 0; i < ROWS; ++i)
                for (int j = 0; j < COLS; ++j) parts[i][j] = fmaf(left[i], right[j], parts[i][j]);
        }
        for (int i = 0; i < ROWS; ++i)
            for (int j = 0; j < COLS; ++j) sums[i][j] += parts[i][j];
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256)
gradient_of_a(const grad_out_t* __restrict__ grad_out, const b_t* __restrict__ b, grad_a_t* __restrict__ grad_a, int m,
              int n, int k) {
    float sums[ROWS][COLS] = {};
    if (m == n && n == k) multiply<true, false>(sums, grad_out, b, m, k, n);
    else multiply<true, true>(sums, grad_out, b, m, k, n);
    for (int i = 0; i < ROWS; ++i) {
        for (int j = 0; j < COLS; ++j) {
            const int row = blockIdx.y * M + threadIdx.x / 16 + 16 * i;
            const int col = blockIdx.x * N + threadIdx.x % 16 + 16 * j;
            if (row < m && col < k) grad_a[(long long)row * k + col] = grad_a_t(sums[i][j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
gradient_of_b(const grad_out_t* __restrict__ grad_out, const a_t* __restrict__ a, grad_b_t* __restrict__ grad_b, int m,
              int n, int k) {
    float sums[ROWS][COLS] = {};
    multiply<false, false>(sums, a, grad_out, k, n, m);
    for (int i = 0; i < ROWS; ++i) {
        for (int j = 0; j < COLS; ++j) {
            const int row = blockIdx.y * M + threadIdx.x / 16 + 16 * i;
            const int col = blockIdx.x * N + threadIdx.x % 16 + 16 * j;
            if (row < k && col < n) grad_b[(long long)row * n + col] = grad_b_t(sums[i][j]);
        }
    }
}
