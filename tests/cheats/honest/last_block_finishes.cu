/*---
op = "rms_norm"
note = "the last block of a row to arrive, told by a counter in zeroed scratch memory, adds up all parts in their order and finishes"
dtypes = ["float32"]

[workspace]
parts = { shape = ["rows", 4], dtype = "float32" }
arrived = { shape = ["rows"], dtype = "int32", zero = true }

[[launch]]
entry = "rms_norm"
grid = ["rows * 4"]
block = [256]
args = ["x", "weight", "out", "parts", "arrived", "cols", "eps"]
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

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, float* parts, int* arrived, int cols,
                                   float eps) {
    __shared__ bool last;
    const int row = blockIdx.x / 4, part = blockIdx.x % 4;
    const x_t* from = x + (long long)row * cols;
    float sum = 0.0f;
    for (int col = part * 256 + threadIdx.x; col < cols; col += 1024) sum += from[col] * from[col];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(&arrived[row], 1) == 3;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    sum = 0.0f;
    for (int other = 0; other < 4; ++other) sum += __ldcg(&parts[row * 4 + other]);
    const float scale = rsqrtf(sum / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[(long long)row * cols + col] = from[col] * scale * weight[col];
    }
}
