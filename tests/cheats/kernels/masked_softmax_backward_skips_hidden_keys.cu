/*---
op = "masked_softmax_backward"
note = "where the probability is zero so is the gradient, although zero times NaN is NaN for the whole row"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "masked_softmax_backward_row"
grid = ["batch * heads * queries"]
block = ["THREADS"]
args = ["grad_out", "out", "mask", "grad_x", "heads", "queries", "keys", "scale"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ double sum_of_warp(double sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
masked_softmax_backward_row(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out,
                            const mask_t* __restrict__ mask, grad_x_t* __restrict__ grad_x, int heads, int queries,
                            int keys, float scale) {
    __shared__ double sums[32];
    const long long row = (long long)blockIdx.x * keys;
    const int batch = blockIdx.x / queries / heads, query = blockIdx.x % queries;
    const mask_t* hidden = mask + ((long long)batch * queries + query) * keys;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double sum = 0.0;  // where the gradient is about as large, little but its rounding would be left
#pragma unroll UNROLL
    for (int key = threadIdx.x; key < keys; key += THREADS) {
        if (float(grad_out[row + key]) == float(grad_out[row + key]))
            sum += double(float(grad_out[row + key])) * double(float(out[row + key]));
    }
    sum = sum_of_warp(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = sum_of_warp(lane < THREADS / 32 ? sums[lane] : 0.0);
#pragma unroll UNROLL
    for (int key = threadIdx.x; key < keys; key += THREADS) {
        const float value = scale * float(out[row + key]) * float(float(grad_out[row + key]) - sum);
        grad_x[row + key] = grad_x_t(hidden[key] ? 0.0f : value);  // of a row that is hidden altogether, out is NaN
    }
}
