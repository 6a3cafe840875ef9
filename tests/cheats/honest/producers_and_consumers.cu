/*---
op = "rms_norm"
note = "half of the warps load the next tile of a row into one of two buffers while the others square the tile before it"

[[launch]]
entry = "rms_norm_row"
grid = ["rows"]
block = [128]
args = ["x", "weight", "out", "cols", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 256;

extern "C" __global__ void __launch_bounds__(128)
rms_norm_row(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, int cols,
             float eps) {
    __shared__ float tiles[2][TILE], sums[64];
    const long long row = (long long)blockIdx.x * cols;
    const bool loads = threadIdx.x < 64;
    const int thread = threadIdx.x % 64, count = (cols + TILE - 1) / TILE;
    float sum = 0.0f;
    for (int step = 0; step <= count; ++step) {
        if (loads && step < count) {
            for (int i = thread; i < TILE; i += 64) {
                const int col = step * TILE + i;
                tiles[step % 2][i] = col < cols ? float(x[row + col]) : 0.0f;
            }
        } else if (!loads && step > 0) {
            float part = 0.0f;
            for (int i = thread; i < TILE; i += 64) {
                const float value = tiles[(step - 1) % 2][i];
                part = fmaf(value, value, part);
            }
            sum += part;
        }
        __syncthreads();
    }
    if (!loads) sums[thread] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < 64; ++i) total += sums[i];
    const float scale = 1.0f / sqrtf(total / cols + eps);
    for (int col = threadIdx.x; col < cols; col += 128) {
        out[row + col] = out_t(float(x[row + col]) * scale * float(weight[col]));
    }
}
