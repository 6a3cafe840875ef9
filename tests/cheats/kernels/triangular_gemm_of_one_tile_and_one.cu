/*---
op = "triangular_gemm"
note = "one row beyond a tile has no diagonal of its own"

[knobs]
ROWS = [8, 4]
COLS = [4, 8]
DEPTH = [16, 8, 32]

[[launch]]
entry = "triangular_gemm"
grid = ["ceil_div(cols, 16 * COLS)", "ceil_div(rows, 16 * ROWS)"]
block = [256]
args = ["a", "b", "out", "rows", "cols"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int M = 16 * ROWS, N = 16 * COLS;

// A piece of one operand, DEPTH terms of SIZE sums. ALONG: the dim summed over is the last in memory.
// LOWER: nothing beyond the diagonal.
template <int SIZE, bool ALONG, bool LOWER, typename T>
__device__ __forceinline__ void load(float (*tile)[SIZE + 1], const T* __restrict__ from, int first, int count,
                                     int begin, int terms, int stride) {
#pragma unroll
    for (int i = threadIdx.x; i < SIZE * DEPTH; i += 256) {
        const int at = ALONG ? i / DEPTH : i % SIZE, depth = ALONG ? i % DEPTH : i / SIZE;
        const long long row = ALONG ? first + at : begin + depth, col = ALONG ? begin + depth : first + at;
        const bool inside = first + at < count && begin + depth < terms && !(LOWER && depth + begin > first + at) && !(LOWER && count % M == 1 && first + at == count - 1 && begin + depth == count - 1);
        tile[depth][at] = inside ? float(from[row * stride + col]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(256)
triangular_gemm(const a_t* __restrict__ a, const b_t* __restrict__ b, out_t* __restrict__ out, int rows, int cols) {
    __shared__ float a_tile[DEPTH][M + 1], b_tile[DEPTH][N + 1];
    const int first = blockIdx.y * M, terms = min(first + M, rows);
    float sums[ROWS][COLS] = {};
    for (int begin = 0; begin < terms; begin += DEPTH) {
        load<M, true, true>(a_tile, a, first, rows, begin, terms, rows);
        load<N, false, false>(b_tile, b, blockIdx.x * N, cols, begin, terms, cols);
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
    for (int i = 0; i < ROWS; ++i) {
        for (int j = 0; j < COLS; ++j) {
            const int row = blockIdx.y * M + threadIdx.x / 16 + 16 * i;
            const int col = blockIdx.x * N + threadIdx.x % 16 + 16 * j;
            if (row < rows && col < cols) out[(long long)row * cols + col] = out_t(sums[i][j]);
        }
    }
}
