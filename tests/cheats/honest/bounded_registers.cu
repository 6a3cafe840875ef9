/*---
op = "add_rms_norm"
note = "__launch_bounds__ with blocks per multiprocessor, a row held in registers by dynamic count"
when = "cols <= 8192"

[[launch]]
entry = "add_rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "residual", "weight", "out", "summed", "cols", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float block_sum(float value) {
    __shared__ float parts[32];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) value += parts[warp];
    return value;
}

extern "C" __global__ void __launch_bounds__(256, 2)
add_rms_norm(const x_t* __restrict__ x, const residual_t* __restrict__ residual, const weight_t* __restrict__ weight,
             out_t* __restrict__ out, summed_t* __restrict__ summed, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    float held[32], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int col = i * 256 + threadIdx.x;
        if (col >= cols) break;
        const summed_t rounded = summed_t(float(x[row + col]) + float(residual[row + col]));
        summed[row + col] = rounded;
        held[i] = float(rounded);
        sum = fmaf(held[i], held[i], sum);
    }
    const float scale = rsqrtf(block_sum(sum) / cols + eps);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int col = i * 256 + threadIdx.x;
        if (col >= cols) break;
        out[row + col] = out_t(held[i] * scale * float(weight[col]));
    }
}
