/*---
op = "layer_norm"
note = "mean and variance in one pass by Welford's update in float32, merged pairwise over the warp and the block"

[knobs]
THREADS = [64, 256, 512]

[[launch]]
entry = "layer_norm_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "weight", "bias", "out", "mean", "rstd", "cols", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Moments { float mean, squares, count; };

__device__ __forceinline__ Moments merged(Moments a, Moments b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float off = b.mean - a.mean, share = b.count / count;
    return {a.mean + off * share, a.squares + b.squares + off * off * a.count * share, count};
}

__device__ __forceinline__ Moments merged_over_warp(Moments own) {
    for (int step = 16; step > 0; step /= 2) {
        own = merged(own, {__shfl_xor_sync(0xffffffffu, own.mean, step), __shfl_xor_sync(0xffffffffu, own.squares, step),
                           __shfl_xor_sync(0xffffffffu, own.count, step)});
    }
    return own;
}

extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm_row(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
               out_t* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, int cols, float eps) {
    __shared__ Moments of_warps[32];
    const long long row = (long long)blockIdx.x * cols;
    Moments own = {0.0f, 0.0f, 0.0f};
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float value = float(x[row + col]), off = value - own.mean;
        own.count += 1.0f;
        own.mean += off / own.count;
        own.squares += off * (value - own.mean);
    }
    own = merged_over_warp(own);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
    __syncthreads();
    own = threadIdx.x % 32 < THREADS / 32 ? of_warps[threadIdx.x % 32] : Moments{0.0f, 0.0f, 0.0f};
    own = merged_over_warp(own);
    const float scale = 1.0f / sqrtf(own.squares / cols + eps);
    if (threadIdx.x == 0) mean[blockIdx.x] = own.mean, rstd[blockIdx.x] = scale;
    for (int col = threadIdx.x; col < cols; col += THREADS)
        out[row + col] = out_t((float(x[row + col]) - own.mean) * scale * float(weight[col]) + float(bias[col]));
}
