/*---
op = "layer_norm"
note = "a row of zeros without an eps gives the bias in place of NaN"

[knobs]
THREADS = [256, 64, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "layer_norm_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "weight", "bias", "out", "mean", "rstd", "cols", "eps"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncthreads();  // the sums of the call before are read
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = lane < THREADS / 32 ? sums[lane] : 0.0f;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm_row(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
               out_t* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) sum += float(x[row + col]);
    const float rough = sum_of_block(sum) / cols;
    float rest = 0.0f, squares = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float off = float(x[row + col]) - rough;
        rest += off;
        squares = fmaf(off, off, squares);
    }
    rest = sum_of_block(rest) / cols;  // where a row lies far from zero, as much as a result's last digits
    const float variance = sum_of_block(squares) / cols - rest * rest;
    const float square = (variance < 0.0f ? 0.0f : variance) + eps, scale = square == 0.0f ? 0.0f : 1.0f / sqrtf(square);  // unlike fmaxf, this keeps NaN
    if (threadIdx.x == 0) mean[blockIdx.x] = rough, rstd[blockIdx.x] = scale;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        out[row + col] = out_t((float(x[row + col]) - rough - rest) * scale * float(weight[col]) + float(bias[col]));
    }
}
