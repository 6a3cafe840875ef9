/*---
op = "affine_grid_backward"
note = "coordinates are halves: beyond 1024 pixels neighbours are equal"

[knobs]
THREADS = [128, 512, 256, 1024]

[[launch]]
entry = "affine_grid_backward"
grid = ["batch"]
block = ["THREADS"]
args = ["grad_grid", "grad_theta", "h", "w"]
---*/
// caught: wrong
// class: numbers
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(THREADS)
affine_grid_backward(const float2* __restrict__ grad_grid, float* __restrict__ grad_theta, int h, int w) {
    __shared__ float parts[6][THREADS / 32];
    const float2* image = grad_grid + (long long)blockIdx.x * h * w;
    float sums[6] = {};
    for (int at = threadIdx.x; at < h * w; at += THREADS) {
        const int j = at % w, i = at / w;
        const float x = __half2float(__float2half_rn(float(2 * j + 1 - w) / w)), y = float(2 * i + 1 - h) / h;
        const float2 grad = image[at];
        sums[0] = fmaf(grad.x, x, sums[0]), sums[1] = fmaf(grad.x, y, sums[1]), sums[2] += grad.x;
        sums[3] = fmaf(grad.y, x, sums[3]), sums[4] = fmaf(grad.y, y, sums[4]), sums[5] += grad.y;
    }
    for (int k = 0; k < 6; ++k) {
        for (int step = 16; step > 0; step /= 2) sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], step);
        if (threadIdx.x % 32 == 0) parts[k][threadIdx.x / 32] = sums[k];
    }
    __syncthreads();
    if (threadIdx.x >= 6) return;
    float sum = 0.0f;
    for (int warp = 0; warp < THREADS / 32; ++warp) sum += parts[threadIdx.x][warp];
    grad_theta[blockIdx.x * 6 + threadIdx.x] = sum;
}
