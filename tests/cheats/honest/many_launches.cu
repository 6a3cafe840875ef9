/*---
op = "softmax"
note = "eighteen launches, each for every eighteenth row, some of them empty"
dtypes = ["float32"]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 0, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 0]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 1, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 1]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 2, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 2]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 3, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 3]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 4, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 4]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 5, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 5]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 6, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 6]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 7, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 7]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 8, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 8]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 9, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 9]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 10, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 10]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 11, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 11]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 12, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 12]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 13, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 13]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 14, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 14]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 15, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 15]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 16, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 16]

[[launch]]
entry = "some_rows"
grid = ["ceil_div(max(rows - 17, 0), 18)"]
block = [256]
args = ["x", "out", "cols", 17]
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

extern "C" __global__ void some_rows(const x_t* x, out_t* out, int cols, int first) {
    const long long row = (long long)(blockIdx.x * 18 + first) * cols;
    float most = -INFINITY, sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) most = fmaxf(most, x[row + col]);
    most = block_max(most);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += expf(x[row + col] - most);
    sum = block_sum(sum);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[row + col] = expf(x[row + col] - most) / sum;
}
