/*---
op = "log_softmax"
note = "exponentials and logarithm of base two, of differences from the maximum; a thread without columns starts at the lowest number"

[[launch]]
entry = "log_softmax_row"
grid = ["rows"]
block = [256]
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

constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;

extern "C" __global__ void log_softmax_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ float mosts[8];
    const long long row = (long long)blockIdx.x * cols;
    float most = -INFINITY, sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 256) most = fmaxf(most, float(x[row + col]));
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (threadIdx.x % 32 == 0) mosts[threadIdx.x / 32] = most;
    __syncthreads();
    for (int warp = 0; warp < 8; ++warp) most = fmaxf(most, mosts[warp]);
    for (int col = threadIdx.x; col < cols; col += 256) sum += exp2f((float(x[row + col]) - most) * LOG2_E);
    const float logarithm = log2f(sum_of_block(sum)) * LN_2;
    for (int col = threadIdx.x; col < cols; col += 256) out[row + col] = out_t(float(x[row + col]) - most - logarithm);
}
