/*---
op = "gemm"
note = "both operands are put into shared memory the other way round, and the tile of the product too, from where it is written"

[[launch]]
entry = "gemm"
grid = ["ceil_div(m, 32)", "ceil_div(n, 32)"]
block = [32, 8]
args = ["a", "b", "out", "m", "n", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gemm(const a_t* __restrict__ a, const b_t* __restrict__ b, out_t* __restrict__ out, int m,
                                int n, int k) {
    __shared__ float left[32][33], right[32][33], product[32][33];
    const int top = blockIdx.x * 32, side = blockIdx.y * 32;
    float sums[4] = {};
    for (int first = 0; first < k; first += 32) {
        for (int i = threadIdx.y; i < 32; i += 8) {
            const int row = top + i, along = first + threadIdx.x, down = first + i, col = side + threadIdx.x;
            left[threadIdx.x][i] = row < m && along < k ? float(a[(long long)row * k + along]) : 0.0f;
            right[threadIdx.x][i] = down < k && col < n ? float(b[(long long)down * n + col]) : 0.0f;
        }
        __syncthreads();
        for (int j = 0; j < 4; ++j) {  // thread x has a row, threads y every eighth column
            float part = 0.0f;
            for (int i = 0; i < 32; ++i) part = fmaf(left[i][threadIdx.x], right[threadIdx.y + 8 * j][i], part);
            sums[j] += part;
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; ++j) product[threadIdx.y + 8 * j][threadIdx.x] = sums[j];
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) {
        const int row = top + i, col = side + threadIdx.x;
        if (row < m && col < n) out[(long long)row * n + col] = out_t(product[threadIdx.x][i]);
    }
}
