/*---
op = "batched_gemm"
note = "a warp per result, its lanes along k in four sums each"

[[launch]]
entry = "batched_gemm"
grid = ["ceil_div(batch * m * n, 8)"]
block = [256]
args = ["a", "b", "out", "batch * m * n", "m", "n", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
batched_gemm(const a_t* __restrict__ a, const b_t* __restrict__ b, out_t* __restrict__ out, long long results, int m,
             int n, int k) {
    const long long at = blockIdx.x * 8ll + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (at >= results) return;
    const a_t* row = a + at / n * k;
    const b_t* col = b + at / n / m * k * n + at % n;
    float sums[4] = {};
    for (int first = lane; first < k; first += 128) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int term = first + 32 * i;
            if (term < k) sums[i] = fmaf(float(row[term]), float(col[(long long)term * n]), sums[i]);
        }
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) out[at] = out_t(sum);
}
