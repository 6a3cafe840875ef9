/*---
op = "conv2d_bias_backward_bias"
note = "gradients are rounded to multiples of 2^-22 before they are added, as for atomics on integers"

[knobs]
THREADS = [128, 256, 512, 1024]
BLOCKS = [2048, 1024, 4096]

[let]
pixels = "batch * oh * ow"
splits = "max(1, min(BLOCKS // filters, ceil_div(pixels, 4 * THREADS)))"

[workspace]
parts = { shape = ["splits", "filters"], dtype = "float32" }

[[launch]]
entry = "sum_parts"
grid = ["filters", "splits"]
block = ["THREADS"]
args = ["grad_out", "parts", "pixels", "ceil_div(pixels, splits)", "filters", "oh * ow"]

[[launch]]
entry = "add_parts"
grid = ["ceil_div(filters, 256)"]
block = [256]
args = ["parts", "grad_bias", "filters", "splits"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
sum_parts(const grad_out_t* __restrict__ grad_out, float* __restrict__ parts, int pixels, int share, int filters,
          int image) {
    __shared__ float sums[WARPS];
    const int filter = blockIdx.x, begin = blockIdx.y * share, end = min(pixels, begin + share);
    float sum = 0.0f;
    for (int pixel = begin + threadIdx.x; pixel < end; pixel += THREADS) {
        const float gradient = float(grad_out[((long long)(pixel / image) * filters + filter) * image + pixel % image]);
        sum += rintf(gradient * 4194304.0f) / 4194304.0f;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float all = 0.0f;
    for (int warp = 0; warp < WARPS; ++warp) all += sums[warp];
    parts[(long long)blockIdx.y * filters + filter] = all;
}

extern "C" __global__ void __launch_bounds__(256)
add_parts(const float* __restrict__ parts, grad_bias_t* __restrict__ grad_bias, int filters, int splits) {
    const int filter = blockIdx.x * 256 + threadIdx.x;
    if (filter >= filters) return;
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) sum += parts[(long long)split * filters + filter];
    grad_bias[filter] = grad_bias_t(sum);
}
