/*---
op = "add_rms_norm"
note = "tensors come as lists, by value: two inputs, two outputs"

[[launch]]
entry = "add_rms_norm"
grid = ["rows"]
block = [256]
args = [["x", "residual"], "weight", ["out", "summed"], "cols", "eps"]
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

extern "C" __global__ void add_rms_norm(List<const x_t*, 2> terms, const weight_t* weight, List<out_t*, 2> to, int cols,
                                       float eps) {
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        float both = 0.0f;
        for (int term = 0; term < 2; ++term) both += float(terms[term][row + col]);
        to[1][row + col] = out_t(both);
        sum += float(out_t(both)) * float(out_t(both));
    }
    const float scale = rsqrtf(block_sum(sum) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        to[0][row + col] = out_t(float(to[1][row + col]) * scale * float(weight[col]));
    }
}
