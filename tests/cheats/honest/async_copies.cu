/*---
op = "rms_norm"
note = "copies the row into shared memory by cp.async, the last bytes by plain stores"
dtypes = ["float32"]
when = "cols <= 32768 and cols % 4 == 0"

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
shared = "cols * 4"
args = ["x", "weight", "out", "cols", "eps"]
---*/
// on: cuda
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

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    extern __shared__ __align__(16) float staged[];
    const long long row = (long long)blockIdx.x * cols;
    for (int at = threadIdx.x * 4; at < cols; at += blockDim.x * 4) {
        const unsigned to = (unsigned)__cvta_generic_to_shared(staged + at);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x + row + at) : "memory");
    }
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += staged[col] * staged[col];
    const float scale = rsqrtf(block_sum(sum) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[row + col] = staged[col] * scale * weight[col];
}
