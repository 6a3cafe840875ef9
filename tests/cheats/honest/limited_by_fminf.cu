/*---
op = "huber"
note = "the size limited to delta by fminf, times the size less half the limited one, which keeps NaN; the sum in double, by one atomic per block"

[workspace]
total = { shape = [1], dtype = "float64", zero = true }

[[launch]]
entry = "losses"
grid = ["min(ceil_div(n, 1024), 256)"]
block = [128]
args = ["x", "target", "total", "n", "delta"]

[[launch]]
entry = "mean"
grid = [1]
block = [1]
args = ["total", "loss", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void losses(const x_t* x, const target_t* target, double* total, long long n, float delta) {
    __shared__ double sums[4];
    double sum = 0.0;
    for (long long at = blockIdx.x * 128ll + threadIdx.x; at < n; at += gridDim.x * 128ll) {
        const float size = fabsf(float(x[at]) - float(target[at])), limited = fminf(size, delta);
        sum += limited * (size - 0.5f * limited);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(total, sums[0] + sums[1] + sums[2] + sums[3]);
}

extern "C" __global__ void mean(const double* total, float* loss, long long n) { *loss = float(*total / n); }
