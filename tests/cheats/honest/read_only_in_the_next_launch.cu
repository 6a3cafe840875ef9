/*---
op = "log_softmax"
note = "one launch keeps each row's maximum and logarithm, the next reads them by __ldg"
[workspace]
kept = { shape = ["rows"], dtype = "float64" }

[[launch]]
entry = "keep"
grid = ["rows"]
block = [32]
args = ["x", "kept", "cols"]

[[launch]]
entry = "finish"
grid = ["rows"]
block = [256]
args = ["x", "kept", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void keep(const x_t* __restrict__ x, double* kept, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    float most = -3.4e38f;
    double sum = 0.0;
    for (int col = threadIdx.x; col < cols; col += 32) most = fmaxf(most, float(x[row + col]));
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    for (int col = threadIdx.x; col < cols; col += 32) sum += exp(double(float(x[row + col])) - double(most));
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) kept[blockIdx.x] = double(most) + log(sum);
}

extern "C" __global__ void finish(const x_t* __restrict__ x, const double* kept, out_t* out, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    for (int col = threadIdx.x; col < cols; col += 256) {
        out[row + col] = out_t(float(double(float(x[row + col])) - __ldg(&kept[blockIdx.x])));
    }
}
