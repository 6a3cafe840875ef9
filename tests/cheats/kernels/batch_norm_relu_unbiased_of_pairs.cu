/*---
op = "batch_norm_relu"
note = "the running variance divides by at least two"

[knobs]
THREADS = [64, 512, 128, 256, 1024]
UNROLL = [4, 1, 2, 8]

[let]
area = "height * width"

[[launch]]
entry = "batch_norm_relu_channel"
grid = ["channels"]
block = ["THREADS"]
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "channels", "area", "per_channel", "momentum", "eps"]
---*/
// caught: wrong
// class: numbers
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
batch_norm_relu_channel(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                const float* __restrict__ running_mean, const float* __restrict__ running_var,
                out_t* __restrict__ out, float* __restrict__ new_running_mean, float* __restrict__ new_running_var,
                float* __restrict__ mean, float* __restrict__ rstd, int channels, int area, int per_channel,
                float momentum, float eps) {
    const int channel = blockIdx.x;
    const auto place = [=](int i) { return ((long long)(i / area) * channels + channel) * area + i % area; };
    double sum = 0.0;  // of up to millions, some distributions of which a float rounds all one way
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < per_channel; i += THREADS) sum += double(float(x[place(i)]));
    const float rough = float(sum_of_block(sum) / per_channel);
    double rest = 0.0, squares = 0.0;
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < per_channel; i += THREADS) {
        const double off = float(x[place(i)]) - rough;
        rest += off;
        squares += off * off;
    }
    rest = sum_of_block(rest) / per_channel;
    const float lost = float(rest);  // where a channel lies far from zero, as much as a result's last digits
    const float difference = float(sum_of_block(squares) / per_channel - rest * rest);
    const float variance = difference < 0.0f ? 0.0f : difference;  // unlike fmaxf, this keeps NaN
    const float scale = 1.0f / sqrtf(variance + eps);
    if (threadIdx.x == 0) {
        const float unbiased = variance * per_channel / max(per_channel - 1, 2);
        new_running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * rough;
        new_running_var[channel] = (1.0f - momentum) * running_var[channel] + momentum * unbiased;
        mean[channel] = rough, rstd[channel] = scale;
    }
    const float gain = weight[channel], shift = bias[channel];
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < per_channel; i += THREADS) {
        const long long at = place(i);
        const float normed = (float(x[at]) - rough - lost) * scale * gain + shift;
        out[at] = out_t(normed < 0.0f ? 0.0f : normed);
    }
}
