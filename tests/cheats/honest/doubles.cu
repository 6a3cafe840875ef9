/*---
op = "rms_norm"
note = "everything in double precision, rounded once at the end"

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ double block_sum(double value) {
    __shared__ double parts[256];
    parts[threadIdx.x] = value;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    __syncthreads();
    return parts[0];
}

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    double sum = 0.0;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        const double value = double(float(x[row + col]));
        sum = fma(value, value, sum);
    }
    const double scale = 1.0 / sqrt(block_sum(sum) / cols + double(eps));
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[row + col] = out_t(float(double(float(x[row + col])) * scale * double(float(weight[col]))));
    }
}
