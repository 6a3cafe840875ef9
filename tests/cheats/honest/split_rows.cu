/*---
op = "softmax"
note = "every row is split over PARTS blocks; a second launch merges their maxima and sums from scratch memory"

[knobs]
PARTS = [4, 2, 8]

[workspace]
mosts = { shape = ["rows", "PARTS"], dtype = "float32" }
sums = { shape = ["rows", "PARTS"], dtype = "float32" }

[[launch]]
entry = "parts"
grid = ["rows * PARTS"]
block = [128]
args = ["x", "mosts", "sums", "cols"]

[[launch]]
entry = "merged"
grid = ["rows"]
block = [256]
args = ["x", "out", "mosts", "sums", "cols"]
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

extern "C" __global__ void parts(const x_t* x, float* mosts, float* sums, int cols) {
    const x_t* row = x + (long long)(blockIdx.x / PARTS) * cols;
    const int size = (cols + PARTS - 1) / PARTS, begin = blockIdx.x % PARTS * size, end = min(cols, begin + size);
    float most = -3.402823466e+38f, sum = 0.0f;
    for (int col = begin + threadIdx.x; col < end; col += blockDim.x) most = fmaxf(most, float(row[col]));
    most = block_max(most);
    for (int col = begin + threadIdx.x; col < end; col += blockDim.x) sum += expf(float(row[col]) - most);
    sum = block_sum(sum);
    if (threadIdx.x == 0) mosts[blockIdx.x] = most, sums[blockIdx.x] = sum;
}

extern "C" __global__ void merged(const x_t* x, out_t* out, const float* mosts, const float* sums, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    float most = -3.402823466e+38f, sum = 0.0f;
    for (int part = 0; part < PARTS; ++part) most = fmaxf(most, mosts[blockIdx.x * PARTS + part]);
    for (int part = 0; part < PARTS; ++part) {
        sum += sums[blockIdx.x * PARTS + part] * expf(mosts[blockIdx.x * PARTS + part] - most);
    }
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[row + col] = out_t(expf(float(x[row + col]) - most) / sum);
    }
}
