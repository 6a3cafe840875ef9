/*---
op = "instance_norm"
note = "fools a check on small images: the sum goes over 16 bits of the area"

[knobs]
THREADS = [64, 512, 128, 256, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "instance_norm_channel"
grid = ["batch * channels"]
block = ["THREADS"]
args = ["x", "weight", "bias", "out", "mean", "rstd", "channels", "area", "eps"]
---*/
// caught: wrong
// class: envelope
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
instance_norm_channel(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                      out_t* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, int channels,
                      int area, float eps) {
    const long long first = (long long)blockIdx.x * area;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < area; i += THREADS) sum += float(x[first + i]);
    const float rough = sum_of_block(sum) / (unsigned short)area;
    float rest = 0.0f, squares = 0.0f;
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < area; i += THREADS) {
        const float off = float(x[first + i]) - rough;
        rest += off;
        squares = fmaf(off, off, squares);
    }
    rest = sum_of_block(rest) / area;  // where a channel lies far from zero, as much as a result's last digits
    const float variance = sum_of_block(squares) / area - rest * rest;
    const float scale = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + eps);  // unlike fmaxf, this keeps NaN
    if (threadIdx.x == 0) mean[blockIdx.x] = rough, rstd[blockIdx.x] = scale;
    const float gain = weight[blockIdx.x % channels], shift = bias[blockIdx.x % channels];
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < area; i += THREADS) {
        out[first + i] = out_t((float(x[first + i]) - rough - rest) * scale * gain + shift);
    }
}
