/*---
op = "cross_entropy"
note = "blocks enter the losses of their rows, and block 0 waits for all of them by loads that acquire, as if it could not keep them from running"
[let]
blocks = "min(rows, 4 * sms)"

[workspace]
losses = { shape = ["rows"], dtype = "float32" }
arrived = { shape = [1], dtype = "int32", zero = true }

[[launch]]
entry = "cross_entropy"
grid = ["rows"]
block = [256]
args = ["logits", "targets", "lse", "losses", "arrived", "loss", "vocab", "ignore_index", "label_smoothing", "rows"]
---*/
// caught: unsafe
// on: cuda
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

__device__ int seen(const int* at) {
    int value;
    asm volatile("ld.global.acquire.gpu.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

extern "C" __global__ void cross_entropy(const logits_t* __restrict__ logits, const long long* __restrict__ targets,
                                         float* lse, float* losses, int* arrived, float* loss, int vocab,
                                         long long ignore_index, float label_smoothing, int rows) {
    const logits_t* row = logits + (long long)blockIdx.x * vocab;
    const long long target = targets[blockIdx.x];
    float most = -3.4e38f, sum = 0.0f, total = 0.0f;
    for (int col = 0; col < vocab; ++col) most = fmaxf(most, float(row[col]));
    for (int col = threadIdx.x; col < vocab; col += 256) sum += expf(float(row[col]) - most), total += float(row[col]);
    sum = block_sum(sum), total = block_sum(total);
    if (threadIdx.x == 0) {
        float own = 0.0f;
        if (target != ignore_index) {
            own = logf(sum) + (1.0f - label_smoothing) * (most - float(row[target]));
            if (label_smoothing != 0.0f) own += label_smoothing * (most - total / vocab);
        }
        lse[blockIdx.x] = most + logf(sum);
        losses[blockIdx.x] = own;
        __threadfence();
        atomicAdd(arrived, 1);
    }
    if (blockIdx.x > 0) return;
    while (seen(arrived) < rows) {}
    __syncthreads();
    float all = 0.0f, count = 0.0f;
    for (int at = threadIdx.x; at < rows; at += 256) all += __ldcg(&losses[at]), count += targets[at] != ignore_index;
    all = block_sum(all), count = block_sum(count);
    if (threadIdx.x == 0) *loss = all / count;
}
