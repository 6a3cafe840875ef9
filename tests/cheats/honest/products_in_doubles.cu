/*---
op = "gemv"
note = "a thread per row, products and sum in double precision"

[[launch]]
entry = "gemv_row"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["a", "x", "out", "n", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gemv_row(const a_t* __restrict__ a, const x_t* __restrict__ x, out_t* __restrict__ out,
                                    int n, int k) {
    const int row = blockIdx.x * 64 + threadIdx.x;
    if (row >= n) return;
    double sum = 0.0;
    for (int i = 0; i < k; ++i) sum += double(float(a[(long long)row * k + i])) * double(float(x[i]));
    out[row] = out_t(float(sum));
}
