/*---
op = "causal_conv1d_backward_data"
note = "a tap reaches at most 24 places, as many as a tile in shared memory would hold behind its own"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "causal_conv1d_backward_data"
grid = ["ceil_div(batch * channels * length, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "weight", "grad_x", "batch * channels * length", "channels", "length", "width", "dilation"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
causal_conv1d_backward_data(const grad_out_t* __restrict__ grad_out, const weight_t* __restrict__ weight,
                            grad_x_t* __restrict__ grad_x, long long total, int channels, int length, int width,
                            int dilation) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= total) return;
        const int time = int(at % length), channel = int(at / length % channels);
        float sum = 0.0f;
        for (int tap = 0; tap < width; ++tap) {
            const int ahead = (width - 1 - tap) * dilation;
            if (ahead >= length - time || ahead > 24) continue;
            sum = fmaf(float(weight[(long long)channel * width + tap]), float(grad_out[at + ahead]), sum);
        }
        grad_x[at] = grad_x_t(sum);
    }
}
