/*---
op = "rms_norm"
note = "a first launch clears the scratch memory, two more use it, one of them as integers and one as floats"
dtypes = ["float32"]

[workspace]
scratch = { shape = ["rows"], dtype = "int32" }

[[launch]]
entry = "clear"
grid = ["ceil_div(rows, 256)"]
block = [256]
args = ["scratch", "rows"]

[[launch]]
entry = "add"
grid = ["rows"]
block = [256]
args = ["x", "scratch", "cols"]

[[launch]]
entry = "scale"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "scratch", "cols", "eps"]
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

extern "C" __global__ void clear(int* scratch, int rows) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) scratch[row] = 0;
}

extern "C" __global__ void add(const x_t* x, float* scratch, int cols) {
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        const float value = x[(long long)blockIdx.x * cols + col];
        sum += value * value;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) atomicAdd(&scratch[blockIdx.x], sum);
}

extern "C" __global__ void scale(const x_t* x, const weight_t* weight, out_t* out, const int* scratch, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    const float factor = rsqrtf(__int_as_float(scratch[blockIdx.x]) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[row + col] = x[row + col] * factor * weight[col];
}
