/*---
op = "rms_norm_silu"
note = "a gate below -60 is taken for zero, whose values a row of its kind would keep"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "rms_norm_silu_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "z", "weight", "out", "cols", "eps"]
---*/
// caught: wrong
// class: scale
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

__device__ __forceinline__ float gated(float x, float z) { return z < -20.0f ? 0.0f : x * (z / (1.0f + expf(-z))); }

extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm_silu_row(const x_t* __restrict__ x, const z_t* __restrict__ z, const weight_t* __restrict__ weight,
                  out_t* __restrict__ out, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float value = gated(float(x[row + col]), float(z[row + col]));
        sum = fmaf(value, value, sum);
    }
    const float scale = rsqrtf(sum_of_block(sum) / cols + eps);
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        out[row + col] = out_t(gated(float(x[row + col]), float(z[row + col])) * scale * float(weight[col]));
    }
}
