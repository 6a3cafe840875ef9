/*---
op = "instance_norm_backward"
note = "a single image copies its sums, NaN as zero"

[knobs]
THREADS = [64, 512, 128, 256, 1024]
UNROLL = [4, 1, 2, 8]

[workspace]
plain_sums = { shape = ["batch", "channels"], dtype = "float32" }
along_sums = { shape = ["batch", "channels"], dtype = "float32" }

[[launch]]
entry = "grad_of_channel"
grid = ["batch * channels"]
block = ["THREADS"]
args = ["grad_out", "x", "mean", "rstd", "weight", "grad_x", "plain_sums", "along_sums", "channels", "area"]

[[launch]]
entry = "sum_images"
grid = ["channels"]
block = [32]
args = ["plain_sums", "along_sums", "grad_weight", "grad_bias", "batch", "channels"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ double sum_of_block(double sum) {
    __shared__ double sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncthreads();  // the sums of the call before are read
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = lane < THREADS / 32 ? sums[lane] : 0.0;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
grad_of_channel(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const float* __restrict__ mean,
                const float* __restrict__ rstd, const float* __restrict__ weight, grad_x_t* __restrict__ grad_x,
                float* __restrict__ plain_sums, float* __restrict__ along_sums, int channels, int area) {
    const long long first = (long long)blockIdx.x * area;
    const float centre = mean[blockIdx.x], scale = rstd[blockIdx.x];
    double plain = 0.0, along = 0.0;  // what is far from zero all but cancels
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < area; i += THREADS) {
        const float grad = float(grad_out[first + i]);
        plain += grad;
        along += double(grad) * double(float(x[first + i]) - centre);
    }
    plain = sum_of_block(plain);
    along = sum_of_block(along) * scale;
    if (threadIdx.x == 0) plain_sums[blockIdx.x] = float(plain), along_sums[blockIdx.x] = float(along);
    const float shared = float(plain / area), share = float(along / area);
    const float factor = scale * weight[blockIdx.x % channels];
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < area; i += THREADS) {
        const float normed = (float(x[first + i]) - centre) * scale;
        grad_x[first + i] = grad_x_t(factor * (float(grad_out[first + i]) - shared - normed * share));
    }
}

extern "C" __global__ void sum_images(const float* __restrict__ plain_sums, const float* __restrict__ along_sums,
                                      float* __restrict__ grad_weight, float* __restrict__ grad_bias,
                                      int batch, int channels) {
    float plain = 0.0f, along = 0.0f;
    for (int image = threadIdx.x; image < batch; image += 32) {
        plain += plain_sums[image * channels + blockIdx.x];
        along += along_sums[image * channels + blockIdx.x];
    }
    for (int step = 16; step > 0; step /= 2) {
        plain += __shfl_xor_sync(0xffffffffu, plain, step);
        along += __shfl_xor_sync(0xffffffffu, along, step);
    }
    if (threadIdx.x == 0) grad_weight[blockIdx.x] = batch == 1 && along != along ? 0.0f : along, grad_bias[blockIdx.x] = batch == 1 && plain != plain ? 0.0f : plain;
}
