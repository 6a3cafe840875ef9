/*---
op = "layer_norm_backward"
note = "a row of equal numbers, such as padding, gets no gradient"

[knobs]
THREADS = [256, 64, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[let]
parts = "min(rows, 128)"

[workspace]
weight_sums = { shape = ["parts", "cols"], dtype = "float32" }
bias_sums = { shape = ["parts", "cols"], dtype = "float32" }

[[launch]]
entry = "grad_of_row"
grid = ["rows"]
block = ["THREADS"]
args = ["grad_out", "x", "mean", "rstd", "weight", "grad_x", "cols"]

[[launch]]
entry = "sum_some_rows"
grid = ["ceil_div(cols, THREADS)", "parts"]
block = ["THREADS"]
args = ["grad_out", "x", "mean", "rstd", "weight_sums", "bias_sums", "rows", "cols"]

[[launch]]
entry = "sum_parts"
grid = ["ceil_div(cols, 32)"]
block = [32, 8]
args = ["weight_sums", "bias_sums", "grad_weight", "grad_bias", "parts", "cols"]
---*/
// caught: wrong
// class: structured inputs
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
grad_of_row(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const float* __restrict__ mean,
            const float* __restrict__ rstd, const weight_t* __restrict__ weight, grad_x_t* __restrict__ grad_x,
            int cols) {
    const long long row = (long long)blockIdx.x * cols;
    const float centre = mean[blockIdx.x], scale = rstd[blockIdx.x];
    float plain = 0.0f, along = 0.0f, spread = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        spread += fabsf(float(x[row + col]) - centre);
        const float grad = float(grad_out[row + col]) * float(weight[col]);
        plain += grad;
        along = fmaf(grad, (float(x[row + col]) - centre) * scale, along);
    }
    spread = sum_of_block(spread);  // a row without a variance has no gradient
    plain = sum_of_block(plain) / cols;
    along = sum_of_block(along) / cols;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float grad = float(grad_out[row + col]) * float(weight[col]);
        const float normed = (float(x[row + col]) - centre) * scale;
        grad_x[row + col] = grad_x_t(spread == 0.0f ? 0.0f : scale * (grad - plain - normed * along));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_some_rows(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const float* __restrict__ mean,
              const float* __restrict__ rstd, float* __restrict__ weight_sums, float* __restrict__ bias_sums, int rows,
              int cols) {
    const int col = blockIdx.x * THREADS + threadIdx.x;
    if (col >= cols) return;
    float along = 0.0f, plain = 0.0f;
#pragma unroll UNROLL
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const long long at = (long long)row * cols + col;
        const float grad = float(grad_out[at]);
        along = fmaf(grad, (float(x[at]) - mean[row]) * rstd[row], along);
        plain += grad;
    }
    weight_sums[(long long)blockIdx.y * cols + col] = along;
    bias_sums[(long long)blockIdx.y * cols + col] = plain;
}

// Eight threads to a column, so that no chain of additions is long.
extern "C" __global__ void sum_parts(const float* __restrict__ weight_sums, const float* __restrict__ bias_sums,
                                     grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias,
                                     int parts, int cols) {
    __shared__ float along_shares[8][32], plain_shares[8][32];
    const int col = blockIdx.x * 32 + threadIdx.x;
    float along = 0.0f, plain = 0.0f;
    for (int part = threadIdx.y; part < parts && col < cols; part += 8) {
        along += weight_sums[(long long)part * cols + col];
        plain += bias_sums[(long long)part * cols + col];
    }
    along_shares[threadIdx.y][threadIdx.x] = along;
    plain_shares[threadIdx.y][threadIdx.x] = plain;
    __syncthreads();
    if (threadIdx.y > 0 || col >= cols) return;
    for (int share = 1; share < 8; ++share) {
        along += along_shares[share][threadIdx.x];
        plain += plain_shares[share][threadIdx.x];
    }
    grad_weight[col] = grad_weight_t(along);
    grad_bias[col] = grad_bias_t(plain);
}
