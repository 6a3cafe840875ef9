/*---
op = "gemv"
note = "the sums of a warp start from an array that is not set"

[knobs]
WARPS = [8, 4, 16]
SUMS = [8, 4, 16]

[[launch]]
entry = "gemv_row"
grid = ["ceil_div(n, WARPS)"]
block = ["32 * WARPS"]
args = ["a", "x", "out", "n", "k"]
---*/
// caught: wrong
// class: state
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(32 * WARPS)
gemv_row(const a_t* __restrict__ a, const x_t* __restrict__ x, out_t* __restrict__ out, int n, int k) {
    const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= n) return;
    const a_t* from = a + (long long)row * k;
    float sums[SUMS];
    for (int first = lane; first < k; first += 32 * SUMS) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int at = first + 32 * i;
            if (at < k) sums[i] = fmaf(float(from[at]), float(x[at]), sums[i]);
        }
    }
#pragma unroll
    for (int half = SUMS / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    float sum = sums[0];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) out[row] = out_t(sum);
}
