/*---
op = "mean"
note = "warps keep their sums in places that the hardware's number of the warp selects, which need not begin at zero"
[[launch]]
entry = "mean"
grid = ["rows"]
block = [256]
args = ["x", "out", "cols"]
---*/
// caught: keeps state
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ unsigned warp_number() {
    unsigned number;
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(number));
    return number;
}

extern "C" __global__ void mean(const x_t* x, out_t* out, int cols) {
    __shared__ float sums[64];
    if (threadIdx.x < 64) sums[threadIdx.x] = 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 256) sum += float(x[(long long)blockIdx.x * cols + col]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[warp_number()] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int warp = 0; warp < 64; ++warp) sum += sums[warp];
    if (threadIdx.x == 0) out[blockIdx.x] = out_t(sum / cols);
}
