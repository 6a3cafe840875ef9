/*---
op = "causal_softmax_backward"
note = "with fewer queries than keys the first query sees one key"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "causal_softmax_backward_row"
grid = ["batch * heads * queries"]
block = ["THREADS"]
args = ["grad_out", "out", "grad_x", "queries", "keys", "scale"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ double sum_of_warp(double sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
causal_softmax_backward_row(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out,
                            grad_x_t* __restrict__ grad_x, int queries, int keys, float scale) {
    __shared__ double sums[32];
    const long long row = (long long)blockIdx.x * keys;
    const int seen = min(keys, int(blockIdx.x % queries) + (keys - queries) / 2 * 2 + 1);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double sum = 0.0;  // where the gradient is about as large, little but its rounding would be left
#pragma unroll UNROLL
    for (int key = threadIdx.x; key < seen; key += THREADS) {
        sum += double(float(grad_out[row + key])) * double(float(out[row + key]));
    }
    sum = sum_of_warp(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = sum_of_warp(lane < THREADS / 32 ? sums[lane] : 0.0);
#pragma unroll UNROLL
    for (int key = threadIdx.x; key < keys; key += THREADS) {
        const float value = key < seen ? scale * float(out[row + key]) * float(float(grad_out[row + key]) - sum) : 0.0f;
        grad_x[row + key] = grad_x_t(value);
    }
}
