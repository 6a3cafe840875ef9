/*---
op = "huber"
note = "with the difference d limited to delta on both sides as c, the loss is c * (d - c / 2), which needs no branch; one block, sums in double precision"

[[launch]]
entry = "huber_of_all"
grid = [1]
block = [256]
args = ["x", "target", "loss", "n", "delta"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void huber_of_all(const x_t* __restrict__ x, const target_t* __restrict__ target,
                                        float* __restrict__ loss, long long n, float delta) {
    __shared__ double parts[256];
    double sum = 0.0;
    for (long long at = threadIdx.x; at < n; at += 256) {
        const float off = float(x[at]) - float(target[at]), held = fminf(fmaxf(off, -delta), delta);
        sum += held * (off - 0.5f * held);
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) parts[threadIdx.x] += parts[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) *loss = float(parts[0] / n);
}
