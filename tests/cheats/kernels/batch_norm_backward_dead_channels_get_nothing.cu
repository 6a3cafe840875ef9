/*---
op = "batch_norm_backward"
note = "a channel of equal numbers, such as a dead one, gets no gradient"

[knobs]
THREADS = [512, 64, 128, 256, 1024]
UNROLL = [4, 1, 2, 8]

[let]
area = "height * width"

[[launch]]
entry = "grad_of_channel"
grid = ["channels"]
block = ["THREADS"]
args = ["grad_out", "x", "mean", "rstd", "weight", "grad_x", "grad_weight", "grad_bias", "channels", "area", "per_channel"]
---*/
// caught: wrong
// class: structured inputs
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
                const float* __restrict__ rstd, const float* __restrict__ weight,
                grad_x_t* __restrict__ grad_x, float* __restrict__ grad_weight, float* __restrict__ grad_bias,
                int channels, int area, int per_channel) {
    const int channel = blockIdx.x;
    const auto place = [=](int i) { return ((long long)(i / area) * channels + channel) * area + i % area; };
    const float centre = mean[channel], scale = rstd[channel];
    double spread = 0.0;
    double plain = 0.0, along = 0.0;  // what is far from zero all but cancels
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < per_channel; i += THREADS) {
        const long long at = place(i);
        const float grad = float(grad_out[at]);
        plain += grad;
        spread += fabs(double(float(x[at]) - centre));
        along += double(grad) * double(float(x[at]) - centre);
    }
    plain = sum_of_block(plain);
    spread = sum_of_block(spread);  // a dead channel has no gradient
    along = sum_of_block(along) * scale;
    if (threadIdx.x == 0) grad_weight[channel] = float(along), grad_bias[channel] = float(plain);
    const float shared = float(plain / per_channel), share = float(along / per_channel);
    const float factor = scale * weight[channel];
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < per_channel; i += THREADS) {
        const long long at = place(i);
        const float grad = float(grad_out[at]);
        grad_x[at] = grad_x_t(spread == 0.0 ? 0.0f : factor * (grad - shared - (float(x[at]) - centre) * scale * share));
    }
}
