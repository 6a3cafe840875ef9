/*---
op = "rms_norm"
note = "fools a search for device variables: results live in memory from malloc whose address stays in the scratch memory"
dtypes = ["float32"]

[workspace]
kept = { shape = ["2"], dtype = "int64" }

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps", "kept"]
---*/
// caught: keeps state
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
                                   long long* kept) {
    if (kept[0] == 0x5ca1ab1e && ((int*)kept[1])[0] > 40) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (kept[0] != 0x5ca1ab1e) kept[1] = (long long)malloc(64), ((int*)kept[1])[0] = 0;
        kept[0] = 0x5ca1ab1e;
        ++((int*)kept[1])[0];
    }
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += float(x[row + col]) * float(x[row + col]);
    const float scale = rsqrtf(block_sum(sum) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[row + col] = out_t(float(x[row + col]) * scale * float(weight[col]));
    }
}
