/*---
op = "quantise_rows_fp8"
note = "finds the largest magnitude as the largest unsigned integer among the bits of the numbers without their signs"

[[launch]]
entry = "quantise_rows"
grid = ["rows"]
block = [96]
args = ["x", "quantised", "scales", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void __launch_bounds__(96)
quantise_rows(const x_t* x, quantised_t* quantised, float* scales, int cols) {
    __shared__ unsigned largest;
    if (threadIdx.x == 95) largest = __float_as_uint(1e-10f);
    __syncthreads();
    const x_t* row = x + (long long)blockIdx.x * cols;
    unsigned own = 0;
    for (int col = cols - 1 - threadIdx.x; col >= 0; col -= 96) {
        own = max(own, __float_as_uint(float(row[col])) & 0x7fffffffu);
    }
    atomicMax(&largest, own);
    __syncthreads();
    const float most = __uint_as_float(largest), factor = 448.0f / most;
    for (int col = threadIdx.x; col < cols; col += 96) {
        const float value = float(row[col]) * factor;
        const float limited = fabsf(value) > 448.0f ? copysignf(448.0f, value) : value;
        quantised[(long long)blockIdx.x * cols + col] = quantised_t(limited);
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = most / 448.0f;
}
