/*---
op = "skinny_gemm"
note = "each row of the weight is divided by its largest element before products and multiplied after: 0/0 in a row of zeros"

[knobs]
WARPS = [8, 4]
OF_WEIGHT = [4, 1, 2]
OF_X = [8, 1, 4, 16]

[[launch]]
entry = "skinny_gemm"
grid = ["ceil_div(n, WARPS * OF_WEIGHT)", "ceil_div(m, OF_X)"]
block = ["32 * WARPS"]
args = ["x", "weight", "out", "m", "n", "k"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int PIECE = 16;  // terms that a lane adds up at a time: sums of sums are more exact

extern "C" __global__ void __launch_bounds__(32 * WARPS)
skinny_gemm(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, int m, int n,
            int k) {
    const int lane = threadIdx.x % 32, row = blockIdx.y * OF_X;
    const int col = (blockIdx.x * WARPS + threadIdx.x / 32) * OF_WEIGHT;
    float sums[OF_X][OF_WEIGHT] = {}, most[OF_WEIGHT] = {};
    for (int at = lane; at < k; at += 32) {
#pragma unroll
        for (int j = 0; j < OF_WEIGHT; ++j) {
            const float size = fabsf(float(weight[(long long)min(col + j, n - 1) * k + at]));
            if (size < INFINITY) most[j] = fmaxf(most[j], size);
        }
    }
#pragma unroll
    for (int j = 0; j < OF_WEIGHT; ++j) {
        for (int step = 16; step > 0; step /= 2) most[j] = fmaxf(most[j], __shfl_xor_sync(0xffffffffu, most[j], step));
    }
    for (int first = 0; first < k; first += 32 * PIECE) {
        float piece[OF_X][OF_WEIGHT] = {};
        const int last = min(k, first + 32 * PIECE);
        for (int at = first + lane; at < last; at += 32) {
            float values[OF_WEIGHT];
#pragma unroll
            for (int j = 0; j < OF_WEIGHT; ++j) {  // beyond the last row the last again, for a sum that is not stored
                values[j] = float(weight[(long long)min(col + j, n - 1) * k + at]) / most[j];
            }
#pragma unroll
            for (int i = 0; i < OF_X; ++i) {
                const float value = float(x[(long long)min(row + i, m - 1) * k + at]);
#pragma unroll
                for (int j = 0; j < OF_WEIGHT; ++j) piece[i][j] = fmaf(value, values[j], piece[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < OF_X; ++i) {
#pragma unroll
            for (int j = 0; j < OF_WEIGHT; ++j) sums[i][j] += piece[i][j];
        }
    }
#pragma unroll
    for (int i = 0; i < OF_X; ++i) {
#pragma unroll
        for (int j = 0; j < OF_WEIGHT; ++j) {
            float sum = sums[i][j];
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (lane == 0 && row + i < m && col + j < n) out[(long long)(row + i) * n + col + j] = out_t(sum * most[j]);
        }
    }
}
