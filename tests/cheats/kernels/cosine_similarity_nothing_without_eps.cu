/*---
op = "cosine_similarity"
note = "vectors of zeros without an eps give zero in place of NaN"

[knobs]
THREADS = [256, 64, 128, 512]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "cosine_similarity"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "y", "out", "cols", "eps"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ float sum_of_block(float sum, float (&of_warps)[32]) {
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    return sum_of_warp(threadIdx.x % 32 < THREADS / 32 ? of_warps[threadIdx.x % 32] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
cosine_similarity(const x_t* __restrict__ x, const y_t* __restrict__ y, out_t* __restrict__ out, int cols, float eps) {
    __shared__ float sums[4][32];
    const long long row = (long long)blockIdx.x * cols;
    float dot = 0.0f, xx = 0.0f, yy = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float a = float(x[row + col]), b = float(y[row + col]);
        dot = fmaf(a, b, dot);
        xx = fmaf(a, a, xx);
        yy = fmaf(b, b, yy);
    }
    dot = sum_of_block(dot, sums[0]), xx = sum_of_block(xx, sums[1]), yy = sum_of_block(yy, sums[2]);
    const float of_x = fmaxf(fmaxf(sqrtf(xx), eps), 1e-20f), of_y = fmaxf(fmaxf(sqrtf(yy), eps), 1e-20f);
    if (sqrtf(xx) * sqrtf(yy) < 1e-24f) {  // some products have vanished
        dot = 0.0f;
        for (int col = threadIdx.x; col < cols; col += THREADS)
            dot = fmaf(float(x[row + col]) / of_x, float(y[row + col]) / of_y, dot);
        dot = sum_of_block(dot, sums[3]);
    } else {
        dot = dot / of_x / of_y;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = out_t(dot);
}
