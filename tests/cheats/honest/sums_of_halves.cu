/*---
op = "sum"
note = "a stack of partial sums per thread, merged like the carries of a counter: a tree whatever the length of the row"

[[launch]]
entry = "sum_row"
grid = ["rows"]
block = [128]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Term number n is merged with as many partial sums as n has trailing ones.
extern "C" __global__ void __launch_bounds__(128)
sum_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ float sums[128];
    const x_t* row = x + (long long)blockIdx.x * cols;
    float stack[24];
    int count = 0, depth = 0;
    for (int col = threadIdx.x; col < cols; col += 128, ++count) {
        float sum = float(row[col]);
        for (int ones = count; ones & 1; ones >>= 1) sum += stack[--depth];
        stack[depth++] = sum;
    }
    float total = 0.0f;
    while (depth > 0) total += stack[--depth];
    sums[threadIdx.x] = total;
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = out_t(sums[0]);
}
