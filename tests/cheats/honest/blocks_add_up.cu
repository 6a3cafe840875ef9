/*---
op = "mse"
note = "a block for each 256 elements, which adds its part to the total whenever it is done"
when = "n <= 1048576"

[workspace]
total = { shape = [1], dtype = "float32", zero = true }

[[launch]]
entry = "add_up"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "target", "total", "n"]

[[launch]]
entry = "divide"
grid = [1]
block = [1]
args = ["total", "loss", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void add_up(const x_t* x, const target_t* target, float* total, int n) {
    __shared__ float sums[256];
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float off = i < n ? float(x[i]) - float(target[i]) : 0.0f;
    sums[threadIdx.x] = off * off;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(total, sums[0]);
}

extern "C" __global__ void divide(const float* total, loss_t* loss, int n) { *loss = loss_t(*total / n); }
