/*---
op = "mean"
note = "every value is multiplied by the inverse of the count first, and these shares are added up in double, so that no sum overflows"

[[launch]]
entry = "row_mean"
grid = ["rows"]
block = [128]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void row_mean(const x_t* x, out_t* out, int cols) {
    __shared__ double sums[4];
    const double share = 1.0 / cols;
    double sum = 0.0;
    for (int col = threadIdx.x; col < cols; col += 128) sum += float(x[(long long)blockIdx.x * cols + col]) * share;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = out_t(float((sums[3] + sums[2]) + (sums[1] + sums[0])));
}
