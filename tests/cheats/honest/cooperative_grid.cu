/*---
op = "rms_norm"
note = "a grid that is resident all at once sums every row in pieces, waits at the grid's barrier, then scales"
dtypes = ["float32"]

[workspace]
parts = { shape = ["rows", "sms"], dtype = "float32" }

[[launch]]
entry = "rms_norm"
grid = ["sms"]
block = [256]
args = ["x", "weight", "out", "parts", "rows", "cols", "eps"]
cooperative = true
---*/
#include <cooperative_groups.h>

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

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, float* parts, int rows, int cols,
                                   float eps) {
    const int stride = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
    const int used = min(int(gridDim.x), (cols + 255) / 256);  // blocks that have columns of a row
    for (int row = 0; row < rows && blockIdx.x < used; ++row) {
        float sum = 0.0f;
        for (int col = first; col < cols; col += stride) {
            const float value = x[(long long)row * cols + col];
            sum += value * value;
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) parts[row * gridDim.x + blockIdx.x] = sum;
    }
    cooperative_groups::this_grid().sync();
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        float sum = 0.0f;
        for (int part = 0; part < used; ++part) sum += parts[row * gridDim.x + part];
        const float scale = rsqrtf(sum / cols + eps);
        for (int col = threadIdx.x; col < cols; col += blockDim.x) {
            out[(long long)row * cols + col] = x[(long long)row * cols + col] * scale * weight[col];
        }
    }
}
