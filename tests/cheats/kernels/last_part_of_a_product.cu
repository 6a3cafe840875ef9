/*---
op = "gemv"
note = "the products of a row in four parts; the part that comes last adds up all, without a fence of the others"
[workspace]
parts = { shape = ["n", 4], dtype = "float32" }
arrived = { shape = ["n"], dtype = "int32", zero = true }

[[launch]]
entry = "gemv"
grid = ["n", 4]
block = [64]
args = ["a", "x", "parts", "arrived", "out", "k"]
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

extern "C" __global__ void gemv(const a_t* __restrict__ a, const x_t* __restrict__ x, float* parts, int* arrived,
                                out_t* out, int k) {
    const a_t* row = a + (long long)blockIdx.x * k;
    float sum = 0.0f;
    for (int at = blockIdx.y * 64 + threadIdx.x; at < k; at += 4 * 64) sum = fmaf(float(row[at]), float(x[at]), sum);
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    float* own = parts + 4 * blockIdx.x;
    own[blockIdx.y] = sum;
    if (atomicAdd(&arrived[blockIdx.x], 1) < 3) return;
    out[blockIdx.x] = out_t((__ldcg(&own[0]) + __ldcg(&own[1])) + (__ldcg(&own[2]) + __ldcg(&own[3])));
}
