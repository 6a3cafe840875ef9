/*---
op = "group_norm_silu_backward"
note = "the second sum overwrites the first, which other warps still read"

[knobs]
THREADS = [64, 512, 128, 256, 1024]
UNROLL = [4, 1, 2, 8]

[let]
area = "height * width"
group_channels = "channels // sets"

[workspace]
plain_sums = { shape = ["batch", "channels"], dtype = "float32" }
along_sums = { shape = ["batch", "channels"], dtype = "float32" }

[[launch]]
entry = "sum_channel"
grid = ["batch * channels"]
block = ["THREADS"]
args = ["grad_out", "x", "mean", "rstd", "weight", "bias", "plain_sums", "along_sums", "area", "group_channels", "channels"]

[[launch]]
entry = "grad_of_group"
grid = ["batch * sets"]
block = ["THREADS"]
args = ["grad_out", "x", "mean", "rstd", "weight", "bias", "plain_sums", "along_sums", "grad_x", "per_group", "area", "group_channels", "sets"]

[[launch]]
entry = "sum_images"
grid = ["channels"]
block = [32]
args = ["plain_sums", "along_sums", "grad_weight", "grad_bias", "batch", "channels"]
---*/
// caught: wrong, unsafe
// class: races
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = lane < THREADS / 32 ? sums[lane] : 0.0f;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// off * scale * gain + shift, also where large weights and biases cancel: there the SiLU bends, and a large weight
// multiplies whatever rounding takes from (off * scale).
__device__ __forceinline__ float before_silu(float off, float scale, float gain, float shift) {
    const float normed = __fmul_rn(off, scale), lost = fmaf(off, scale, -normed);
    return fmaf(lost, gain, fmaf(normed, gain, shift));
}

// The gradient of what the SiLU is taken of.
__device__ __forceinline__ float grad_before(float grad, float y) {
    const float share = 1.0f / (1.0f + expf(-y));
    return grad * share * (1.0f + y * (1.0f - share));
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_channel(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const mean_t* __restrict__ mean,
            const rstd_t* __restrict__ rstd, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
            float* __restrict__ plain_sums, float* __restrict__ along_sums, int area, int group_channels,
            int channels) {
    const long long first = (long long)blockIdx.x * area;
    const float centre = float(mean[blockIdx.x / group_channels]), scale = float(rstd[blockIdx.x / group_channels]);
    const float gain = float(weight[blockIdx.x % channels]), shift = float(bias[blockIdx.x % channels]);
    float plain = 0.0f, along = 0.0f;
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < area; i += THREADS) {
        const float off = float(x[first + i]) - centre;
        const float grad = grad_before(float(grad_out[first + i]), before_silu(off, scale, gain, shift));
        plain += grad;
        along = fmaf(grad, off, along);
    }
    plain = sum_of_block(plain);
    along = sum_of_block(along) * scale;
    if (threadIdx.x == 0) plain_sums[blockIdx.x] = plain, along_sums[blockIdx.x] = along;
}

extern "C" __global__ void __launch_bounds__(THREADS)
grad_of_group(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const mean_t* __restrict__ mean,
              const rstd_t* __restrict__ rstd, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
              const float* __restrict__ plain_sums, const float* __restrict__ along_sums,
              grad_x_t* __restrict__ grad_x, int per_group, int area, int group_channels, int sets) {
    const long long first = (long long)blockIdx.x * per_group;
    const int first_row = blockIdx.x * group_channels, first_channel = blockIdx.x % sets * group_channels;
    const float centre = float(mean[blockIdx.x]), scale = float(rstd[blockIdx.x]);
    float plain = 0.0f, along = 0.0f;
    for (int i = threadIdx.x; i < group_channels; i += THREADS) {
        plain = fmaf(plain_sums[first_row + i], float(weight[first_channel + i]), plain);
        along = fmaf(along_sums[first_row + i], float(weight[first_channel + i]), along);
    }
    plain = sum_of_block(plain) / per_group;
    along = sum_of_block(along) / per_group;
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < per_group; i += THREADS) {
        const int channel = first_channel + i / area;
        const float gain = float(weight[channel]), off = float(x[first + i]) - centre;
        const float y = before_silu(off, scale, gain, float(bias[channel]));
        const float grad = grad_before(float(grad_out[first + i]), y) * gain;
        grad_x[first + i] = grad_x_t(scale * (grad - plain - off * scale * along));
    }
}

extern "C" __global__ void sum_images(const float* __restrict__ plain_sums, const float* __restrict__ along_sums,
                                      grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias,
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
    if (threadIdx.x == 0) grad_weight[blockIdx.x] = grad_weight_t(along), grad_bias[blockIdx.x] = grad_bias_t(plain);
}
