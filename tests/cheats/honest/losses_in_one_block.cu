/*---
op = "mse"
note = "a single block adds up all losses, each thread with a remainder of what rounding took, which counts only while it is finite"

[[launch]]
entry = "mse_of_all"
grid = [1]
block = [512]
args = ["x", "target", "loss", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void mse_of_all(const x_t* __restrict__ x, const target_t* __restrict__ target,
                                      float* __restrict__ loss, long long n) {
    __shared__ double parts[512];
    float sum = 0.0f, lost = 0.0f;
    for (long long at = threadIdx.x; at < n; at += 512) {
        const float off = float(x[at]) - float(target[at]), term = off * off, next = sum + term;
        lost += fabsf(sum) >= fabsf(term) ? (sum - next) + term : (term - next) + sum;
        sum = next;
    }
    parts[threadIdx.x] = double(sum) + (isfinite(lost) ? lost : 0.0f);
    __syncthreads();
    for (int step = 256; step > 0; step /= 2) {
        if (threadIdx.x < step) parts[threadIdx.x] += parts[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) *loss = float(parts[0] / n);
}
