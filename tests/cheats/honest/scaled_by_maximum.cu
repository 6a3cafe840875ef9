/*---
op = "l2_norm"
note = "the row is divided by its greatest size before it is squared, so that nothing overflows or vanishes; zero, infinite and NaN rows are told apart first"

[[launch]]
entry = "l2_norm"
grid = ["rows"]
block = [128]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float combined(float value, bool add) {
    __shared__ float parts[128];
    __syncthreads();
    parts[threadIdx.x] = value;
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half) continue;
        const float other = parts[threadIdx.x + half];
        parts[threadIdx.x] = add ? parts[threadIdx.x] + other : fmaxf(parts[threadIdx.x], other);
    }
    __syncthreads();
    return parts[0];
}

extern "C" __global__ void l2_norm(const x_t* x, out_t* out, int cols) {
    const x_t* row = x + (long long)blockIdx.x * cols;
    float most = 0.0f, sum = 0.0f;
    bool strange = false;
    for (int col = threadIdx.x; col < cols; col += 128) {
        most = fmaxf(most, fabsf(float(row[col])));
        strange |= isnan(float(row[col]));
    }
    strange = __syncthreads_or(strange);
    most = combined(most, false);
    for (int col = threadIdx.x; col < cols; col += 128) {
        const float part = float(row[col]) / most;
        sum = fmaf(part, part, sum);
    }
    sum = combined(sum, true);
    if (threadIdx.x > 0) return;
    out[blockIdx.x] = out_t(strange ? NAN : most == 0.0f || most == INFINITY ? most : most * sqrtf(sum));
}
