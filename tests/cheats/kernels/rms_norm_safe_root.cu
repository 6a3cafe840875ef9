/*---
op = "rms_norm"
note = "a row of zeros without an eps gives zeros in place of NaN"

[knobs]
THREADS = [256, 64, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "rms_norm_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm_row(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, int cols,
             float eps) {
    __shared__ float sums[32];
    const long long row = (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float value = float(x[row + col]);
        sum = fmaf(value, value, sum);
    }
    sum = sum_of_warp(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = sum_of_warp(lane < THREADS / 32 ? sums[lane] : 0.0f);
    const float square = sum / cols + eps, scale = square == 0.0f ? 0.0f : rsqrtf(square);
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        out[row + col] = out_t(float(x[row + col]) * scale * float(weight[col]));
    }
}
