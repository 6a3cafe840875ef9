/*---
op = "quantise_rows_fp8"
note = "ties between subnormal numbers are rounded away from zero"

[knobs]
THREADS = [256, 64, 128, 512, 1024]

[[launch]]
entry = "quantise_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "quantised", "scales", "cols"]
---*/
// caught: wrong
// class: numbers
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

constexpr float LARGEST = 448.0f, LEAST = 1e-10f;

__device__ __forceinline__ float most_of_warp(float most) {
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
}

extern "C" __global__ void __launch_bounds__(THREADS)
quantise_row(const x_t* __restrict__ x, quantised_t* __restrict__ quantised, float* __restrict__ scales, int cols) {
    __shared__ float mosts[32];
    const long long start = (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most = LEAST;
    for (int col = threadIdx.x; col < cols; col += THREADS) most = fmaxf(most, fabsf(float(x[start + col])));
    most = most_of_warp(most);
    if (lane == 0) mosts[warp] = most;
    __syncthreads();
    most = most_of_warp(lane < THREADS / 32 ? mosts[lane] : LEAST);
    const float factor = __fdiv_rn(LARGEST, most);
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float value = fminf(fmaxf(float(x[start + col]) * factor, -LARGEST), LARGEST);
        // subnormal results are multiples of 2^-9
        quantised[start + col] = quantised_t(fabsf(value) < 0.015625f ? copysignf(floorf(fabsf(value) * 512.0f + 0.5f) / 512.0f, value) : value);
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = __fdiv_rn(most, LARGEST);
}
