/*---
op = "log_softmax"
note = "one buffer comes twice, once to write and once as const __restrict__, which the compiler reads through the read-only cache"
[workspace]
kept = { shape = ["rows", 2], dtype = "float32" }

[[launch]]
entry = "log_softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "kept", "kept", "cols"]
---*/
// caught: unsafe
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float block_sum(float value) {
    __shared__ float sums[32];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f;
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

extern "C" __global__ void log_softmax(const x_t* __restrict__ x, out_t* out, float* __restrict__ kept,
                                       const float* __restrict__ seen, int cols) {
    __shared__ float mosts[256];
    const long long row = (long long)blockIdx.x * cols;
    float most = -3.4e38f, sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 256) most = fmaxf(most, float(x[row + col]));
    mosts[threadIdx.x] = most;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) mosts[threadIdx.x] = fmaxf(mosts[threadIdx.x], mosts[threadIdx.x + step]);
        __syncthreads();
    }
    most = mosts[0];
    for (int col = threadIdx.x; col < cols; col += 256) sum += expf(float(x[row + col]) - most);
    sum = block_sum(sum);
    if (threadIdx.x == 0) kept[2 * blockIdx.x] = most, kept[2 * blockIdx.x + 1] = logf(sum);
    __syncthreads();
    for (int col = threadIdx.x; col < cols; col += 256) {
        out[row + col] = out_t(float(x[row + col]) - seen[2 * blockIdx.x] - seen[2 * blockIdx.x + 1]);
    }
}
