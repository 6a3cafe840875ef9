/*---
op = "group_norm"
note = "a group of zeros without an eps gives the bias in place of NaN"

[knobs]
THREADS = [512, 64, 128, 256, 1024]
UNROLL = [4, 1, 2, 8]

[let]
area = "height * width"
group_channels = "channels // sets"

[[launch]]
entry = "group_norm_group"
grid = ["batch * sets"]
block = ["THREADS"]
args = ["x", "weight", "bias", "out", "mean", "rstd", "per_group", "area", "group_channels", "sets", "eps"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncthreads();  // the sums of the call before are read
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = lane < THREADS / 32 ? sums[lane] : 0.0f;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
group_norm_group(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
                 out_t* __restrict__ out, mean_t* __restrict__ mean, rstd_t* __restrict__ rstd, int per_group,
                 int area, int group_channels, int sets, float eps) {
    const long long first = (long long)blockIdx.x * per_group;
    const int first_channel = blockIdx.x % sets * group_channels;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < per_group; i += THREADS) sum += float(x[first + i]);
    const float rough = sum_of_block(sum) / per_group;
    float rest = 0.0f, squares = 0.0f;
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < per_group; i += THREADS) {
        const float off = float(x[first + i]) - rough;
        rest += off;
        squares = fmaf(off, off, squares);
    }
    rest = sum_of_block(rest) / per_group;  // where a group lies far from zero, as much as a result's last digits
    const float variance = sum_of_block(squares) / per_group - rest * rest;
    const float square = (variance < 0.0f ? 0.0f : variance) + eps, scale = square == 0.0f ? 0.0f : 1.0f / sqrtf(square);  // unlike fmaxf, this keeps NaN
    if (threadIdx.x == 0) mean[blockIdx.x] = mean_t(rough), rstd[blockIdx.x] = rstd_t(scale);
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < per_group; i += THREADS) {
        const int channel = first_channel + i / area;
        const float normed = (float(x[first + i]) - rough - rest) * scale;
        out[first + i] = out_t(normed * float(weight[channel]) + float(bias[channel]));
    }
}
