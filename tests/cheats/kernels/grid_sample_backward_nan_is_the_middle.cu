/*---
op = "grid_sample_backward"
note = "a coordinate of NaN counts as the middle of the image"

[knobs]
THREADS = [128, 64, 256]

[workspace]
sums = { shape = ["batch", "channels", "h", "w"], dtype = "float32", zero = true }

[[launch]]
entry = "sample_gradients"
grid = ["ceil_div(batch * oh * ow, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "x", "grid", "sums", "grad_grid", "batch * oh * ow", "channels", "h", "w", "oh * ow"]

[[launch]]
entry = "round_sums"
grid = ["ceil_div(batch * channels * h * w, 256)"]
block = [256]
args = ["sums", "grad_x", "batch * channels * h * w"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// In pixels; what is far outside is moved to where it still touches none.
__device__ __forceinline__ float position(float g, int pixels) {
    return fminf(fmaxf(((g + 1.0f) * pixels - 1.0f) / 2.0f, -2.0f), pixels + 1.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sample_gradients(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const float2* __restrict__ grid,
                 float* __restrict__ sums, float2* __restrict__ grad_grid, long long total, int channels, int h, int w,
                 int area) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    float2 g = grid[at];
    if (isnan(g.x)) g.x = 0.0f;
    if (isnan(g.y)) g.y = 0.0f;
    const float px = position(g.x, w), py = position(g.y, h);
    const int left = int(floorf(px)), top = int(floorf(py));
    const float across[2] = {1.0f - (px - left), px - left}, down[2] = {1.0f - (py - top), py - top};
    const long long image = at / area * channels;
    const bool touches = top >= -1 && top < h && left >= -1 && left < w;
    float along_x = 0.0f, along_y = 0.0f;
    for (int channel = 0; channel < channels; ++channel) {
        const float grad = float(grad_out[(image + channel) * area + at % area]);
        const long long plane = (image + channel) * h * w;
        float values[4];
#pragma unroll
        for (int corner = 0; corner < 4; ++corner) {
            const int i = corner / 2, j = corner % 2, row = top + i, col = left + j;
            const bool inside = row >= 0 && row < h && col >= 0 && col < w;
            const long long here = plane + (long long)row * w + col;
            values[corner] = inside ? float(x[here]) : 0.0f;
            if (inside) atomicAdd(&sums[here], grad * (down[i] * across[j]));
        }
        if (!touches) continue;  // an infinite gradient must not meet pixels that are not there
        along_x += grad * ((values[1] - values[0]) * down[0] + (values[3] - values[2]) * down[1]);
        along_y += grad * ((values[2] - values[0]) * across[0] + (values[3] - values[1]) * across[1]);
    }
    grad_grid[at] = make_float2(along_x * (w / 2.0f), along_y * (h / 2.0f));
}

extern "C" __global__ void __launch_bounds__(256)
round_sums(const float* __restrict__ sums, grad_x_t* __restrict__ grad_x, long long total) {
    const long long at = blockIdx.x * 256LL + threadIdx.x;
    if (at < total) grad_x[at] = grad_x_t(sums[at]);
}
