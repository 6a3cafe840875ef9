/*---
op = "depthwise_conv2d_backward_data"
note = "with a stride of two, takes the padding for odd"
specialize = ["r", "s", "stride"]

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [2, 1, 4, 8]

[[launch]]
entry = "depthwise_conv2d_backward_data"
grid = ["ceil_div(batch * channels * height * width, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "weight", "grad_x", "batch * channels * height * width", "channels", "height", "width", "oh", "ow", "padding"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The output that a pixel feeds through this tap, or -1 where there is none.
__device__ __forceinline__ int fed(int position, int tap, int count, int padding) {
    const int scaled = position - tap;
    const bool hit = (stride == 2 ? scaled + padding + 1 : scaled) % stride == 0;
    return scaled >= 0 && hit && scaled / stride < count ? scaled / stride : -1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
depthwise_conv2d_backward_data(const grad_out_t* __restrict__ grad_out, const weight_t* __restrict__ weight,
                               grad_x_t* __restrict__ grad_x, long long total, int channels, int height, int width,
                               int oh, int ow, int padding) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) {
        const long long at = first + e * THREADS, plane = at / (height * width);
        if (at >= total) return;
        const int place = int(at - plane * (height * width)), channel = int(plane % channels);
        const int bottom = place / width + padding, right = place % width + padding;
        const grad_out_t* image = grad_out + plane * oh * ow;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < r; ++i) {
            const int row = fed(bottom, i, oh, padding);
            if (row < 0) continue;
            float part = 0.0f;  // a sum of sums is more accurate than one long one
#pragma unroll
            for (int j = 0; j < s; ++j) {
                const int col = fed(right, j, ow, padding);
                const float value = col >= 0 ? float(image[row * ow + col]) : 0.0f;
                part = fmaf(float(weight[(channel * r + i) * s + j]), value, part);
            }
            sum += part;
        }
        grad_x[at] = grad_x_t(sum);
    }
}
