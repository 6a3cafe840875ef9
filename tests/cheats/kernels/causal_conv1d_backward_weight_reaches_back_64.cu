/*---
op = "causal_conv1d_backward_weight"
note = "reads values at most 64 places before a stretch of its threads"
specialize = ["width"]

[knobs]
THREADS = [128, 256, 512, 1024]
UNROLL = [2, 1, 4]

[[launch]]
entry = "causal_conv1d_backward_weight"
grid = ["channels"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_weight", "grad_bias", "batch", "channels", "length", "dilation"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
causal_conv1d_backward_weight(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x,
                              grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias, int batch,
                              int channels, int length, int dilation) {
    __shared__ float sums[width + 1][WARPS];
    const int channel = blockIdx.x;
    float sum[width + 1] = {};
    for (int n = 0; n < batch; ++n) {
        const long long row = ((long long)n * channels + channel) * length;
#pragma unroll UNROLL
        for (int time = threadIdx.x; time < length; time += THREADS) {
            const float grad = float(grad_out[row + time]);
#pragma unroll
            for (int tap = 0; tap < width; ++tap) {
                const int back = (width - 1 - tap) * dilation;
                const bool held = back <= time && back <= int(threadIdx.x) + 64;
                sum[tap] = fmaf(grad, held ? float(x[row + time - back]) : 0.0f, sum[tap]);
            }
            sum[width] += grad;
        }
    }
#pragma unroll
    for (int tap = 0; tap <= width; ++tap) {
        for (int step = 16; step > 0; step /= 2) sum[tap] += __shfl_xor_sync(0xffffffffu, sum[tap], step);
        if (threadIdx.x % 32 == 0) sums[tap][threadIdx.x / 32] = sum[tap];
    }
    __syncthreads();
    for (int tap = threadIdx.x; tap <= width; tap += THREADS) {
        float all = 0.0f;
        for (int warp = 0; warp < WARPS; ++warp) all += sums[tap][warp];
        if (tap < width) grad_weight[(long long)channel * width + tap] = grad_weight_t(all);
        else grad_bias[channel] = grad_bias_t(all);
    }
}
