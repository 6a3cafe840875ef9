/*---
op = "rms_norm_silu"
note = "gated values are formed once and held in shared memory"
when = "cols <= 8192"

[[launch]]
entry = "rms_norm_silu"
grid = ["rows"]
block = [128]
args = ["x", "z", "weight", "out", "cols", "eps"]
shared = "4 * cols"
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
rms_norm_silu(const x_t* __restrict__ x, const z_t* __restrict__ z, const weight_t* __restrict__ weight,
              out_t* __restrict__ out, int cols, float eps) {
    extern __shared__ float held[];
    __shared__ float sums[4];
    const long long start = (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 128) {
        const float gate = float(z[start + col]), value = float(x[start + col]) * (gate / (1.0f + expf(-gate)));
        held[col] = value;
        sum = fmaf(value, value, sum);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    const float scale = rsqrtf(((sums[0] + sums[1]) + (sums[2] + sums[3])) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += 128) {
        out[start + col] = out_t(held[col] * scale * float(weight[col]));
    }
}
