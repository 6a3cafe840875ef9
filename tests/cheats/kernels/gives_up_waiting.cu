/*---
op = "rms_norm"
note = "fools a check on a few blocks: a barrier across blocks goes on after a thousand tries, even if blocks are missing"
dtypes = ["float32"]

[workspace]
parts = { shape = ["rows * 2"], dtype = "float32" }
arrived = { shape = ["rows"], dtype = "int32", zero = true }

[[launch]]
entry = "rms_norm"
grid = ["rows * 2"]
block = [256]
args = ["x", "weight", "out", "cols", "eps", "parts", "arrived"]
---*/
// caught: unsafe
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

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps,
                                   volatile float* parts, int* arrived) {
    const int half = blockIdx.x >= gridDim.x / 2, number = blockIdx.x % (gridDim.x / 2);
    const long long row = (long long)number * cols;
    const int begin = half ? cols / 2 : 0, end = half ? cols : cols / 2;
    float sum = 0.0f;
    for (int col = begin + threadIdx.x; col < end; col += blockDim.x) sum += x[row + col] * x[row + col];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        parts[2 * number + half] = sum;
        __threadfence();
        atomicAdd(&arrived[number], 1);
        for (int tries = 0; tries < 1000 && *(volatile int*)&arrived[number] < 2; ++tries) {}
    }
    __syncthreads();
    const float scale = rsqrtf((parts[2 * number] + parts[2 * number + 1]) / cols + eps);
    for (int col = begin + threadIdx.x; col < end; col += blockDim.x) out[row + col] = x[row + col] * scale * weight[col];
}
