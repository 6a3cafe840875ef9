/*---
op = "clip_grad_norm"
note = "all blocks run at once and meet at a barrier of their own, with a fence before and behind it"
[let]
blocks = "min(sms, ceil_div(n, 256))"

[workspace]
partial = { shape = ["blocks"], dtype = "float32" }
arrived = { shape = [1], dtype = "int32", zero = true }

[[launch]]
entry = "clip"
grid = ["blocks"]
block = [256]
args = ["grad", "partial", "arrived", "out", "norm", "n", "max_norm"]
cooperative = true
---*/
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

extern "C" __global__ void clip(const grad_t* __restrict__ grad, float* partial, int* arrived, out_t* out, float* norm,
                                long long n, float max_norm) {
    const long long first = (long long)blockIdx.x * 256 + threadIdx.x, stride = (long long)gridDim.x * 256;
    double squares = 0.0;  // tens of millions of terms
    for (long long at = first; at < n; at += stride) squares += double(float(grad[at])) * double(float(grad[at]));
    float sum = block_sum(float(squares));
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        atomicAdd(arrived, 1);
        while (*(volatile int*)arrived < gridDim.x) {}
        __threadfence();
    }
    __syncthreads();
    sum = 0.0f;
    for (int block = threadIdx.x; block < gridDim.x; block += 256) sum += __ldcg(&partial[block]);
    const float total = sqrtf(block_sum(sum)), clipped = max_norm / (total + 1e-6f);
    const float scale = clipped > 1.0f ? 1.0f : clipped;  // unlike fminf, this keeps NaN
    if (blockIdx.x == 0 && threadIdx.x == 0) *norm = total;
    for (long long at = first; at < n; at += stride) out[at] = out_t(float(grad[at]) * scale);
}
