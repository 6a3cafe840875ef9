/*---
op = "sum"
note = "adds up in double, from the last column to the first; the threads by a tree in shared memory"

[[launch]]
entry = "row_sum"
grid = ["rows"]
block = [64]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void row_sum(const x_t* x, out_t* out, int cols) {
    __shared__ double sums[64];
    double sum = 0.0;
    for (int col = cols - 1 - (int)threadIdx.x; col >= 0; col -= 64) sum += float(x[(long long)blockIdx.x * cols + col]);
    sums[threadIdx.x] = sum;
    for (int half = 32; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = out_t(float(sums[0]));
}
