/*---
op = "l2_norm"
note = "values are divided by the largest magnitude of the row before they are squared, so that no square overflows or vanishes"

[[launch]]
entry = "l2_norm_row"
grid = ["rows"]
block = [128]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> __device__ T sum_of_block(T sum) {
    __shared__ T sums[32];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += sums[warp];
    return sum;
}

extern "C" __global__ void l2_norm_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ float mosts[4];
    x += (long long)blockIdx.x * cols;
    float most = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 128) most = fmaxf(most, fabsf(float(x[col])));
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (threadIdx.x % 32 == 0) mosts[threadIdx.x / 32] = most;
    __syncthreads();
    for (int warp = 0; warp < 4; ++warp) most = fmaxf(most, mosts[warp]);
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 128) {
        const float value = float(x[col]);
        const bool beside_infinity = isinf(most) && isfinite(value);
        const float part = isinf(value) ? 1.0f : beside_infinity ? 0.0f : most > 0.0f ? value / most : value;
        sum = fmaf(part, part, sum);
    }
    sum = sum_of_block(sum);
    // Without a maximum the sum is zero, or NaN where all of the row is.
    if (threadIdx.x == 0) out[blockIdx.x] = out_t(most > 0.0f ? most * sqrtf(sum) : sum);
}
