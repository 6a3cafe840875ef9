/*---
op = "gemm"
note = "tiles of both operands in two buffers each: the next pair is loaded before the barrier behind which it is used"

[[launch]]
entry = "gemm"
grid = ["ceil_div(n, 16)", "ceil_div(m, 16)"]
block = [16, 16]
args = ["a", "b", "out", "m", "n", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(256)
gemm(const a_t* __restrict__ a, const b_t* __restrict__ b, out_t* __restrict__ out, int m, int n, int k) {
    __shared__ float left[2][16][17], right[2][16][17];
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    const auto load = [&](int buffer, int first) {
        const int along = first + threadIdx.x, down = first + threadIdx.y;
        left[buffer][threadIdx.y][threadIdx.x] = row < m && along < k ? float(a[(long long)row * k + along]) : 0.0f;
        right[buffer][threadIdx.y][threadIdx.x] = down < k && col < n ? float(b[(long long)down * n + col]) : 0.0f;
    };
    float sum = 0.0f;
    load(0, 0);
    for (int first = 0, turn = 0; first < k; first += 16, turn ^= 1) {
        __syncthreads();  // this pair is complete, and the other one is no longer read
        if (first + 16 < k) load(turn ^ 1, first + 16);
        float part = 0.0f;
        for (int i = 0; i < 16; ++i) part = fmaf(left[turn][threadIdx.y][i], right[turn][i][threadIdx.x], part);
        sum += part;
    }
    if (row < m && col < n) out[(long long)row * n + col] = out_t(sum);
}
