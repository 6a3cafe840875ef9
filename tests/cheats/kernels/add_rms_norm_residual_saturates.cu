/*---
op = "add_rms_norm"
note = "a residual stream beyond the largest float16 stays there, where it becomes infinite"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "add_rms_norm_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "residual", "weight", "out", "summed", "cols", "eps"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_rms_norm_row(const x_t* __restrict__ x, const residual_t* __restrict__ residual,
                 const weight_t* __restrict__ weight, out_t* __restrict__ out, summed_t* __restrict__ summed, int cols,
                 float eps) {
    __shared__ float sums[32];
    const long long row = (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float exact = float(x[row + col]) + float(residual[row + col]);
        const summed_t rounded = summed_t(sizeof(x_t) == 2 && isinf(float(summed_t(70000.0f))) ? (exact > 65504.0f ? 65504.0f : exact < -65504.0f ? -65504.0f : exact) : exact);
        summed[row + col] = rounded;
        sum = fmaf(float(rounded), float(rounded), sum);
    }
    sum = sum_of_warp(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = sum_of_warp(lane < THREADS / 32 ? sums[lane] : 0.0f);
    const float scale = rsqrtf(sum / cols + eps);
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float exact = float(x[row + col]) + float(residual[row + col]);
        const summed_t rounded = summed_t(sizeof(x_t) == 2 && isinf(float(summed_t(70000.0f))) ? (exact > 65504.0f ? 65504.0f : exact < -65504.0f ? -65504.0f : exact) : exact);
        out[row + col] = out_t(float(rounded) * scale * float(weight[col]));
    }
}
