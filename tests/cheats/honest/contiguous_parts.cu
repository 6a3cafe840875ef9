/*---
op = "gemv"
note = "a block per row, every thread a contiguous part of it in double; one thread adds up the parts from the last to the first"

[[launch]]
entry = "gemv"
grid = ["n"]
block = [64]
args = ["a", "x", "out", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gemv(const a_t* a, const x_t* x, out_t* out, int k) {
    __shared__ double sums[64];
    const a_t* row = a + (long long)blockIdx.x * k;
    const int each = (k + 63) / 64, begin = threadIdx.x * each;
    double sum = 0.0;
    for (int at = begin; at < min(begin + each, k); ++at) sum = fma(double(float(row[at])), double(float(x[at])), sum);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int part = 62; part >= 0; --part) sums[63] += sums[part];
    out[blockIdx.x] = out_t(float(sums[63]));
}
