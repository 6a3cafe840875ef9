/*---
op = "masked_softmax"
note = "masked keys get -inf added, after NaN and infinities there were limited to finite numbers; a row without keys becomes NaN by itself"
require = ["sms > 4 or batch * heads * queries <= 500"]  # fewer on the emulated device, where each takes a while

[[launch]]
entry = "masked_softmax_row"
grid = ["batch * heads * queries"]
block = [128]
args = ["x", "mask", "out", "heads", "queries", "keys", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> __device__ T sum_of_block(T sum) {
    __shared__ T sums[32];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += sums[warp];
    return sum;
}

__device__ float score_of(float x, bool hidden, float scale) {
    const float value = __fmul_rn(x, scale);
    return (hidden ? fminf(value, 1.0f) : value) + (hidden ? -INFINITY : 0.0f);
}

extern "C" __global__ void masked_softmax_row(const x_t* __restrict__ x, const bool* __restrict__ mask,
                                              out_t* __restrict__ out, int heads, int queries, int keys, float scale) {
    __shared__ float mosts[4];
    const long long row = (long long)blockIdx.x * keys;
    mask += ((long long)(blockIdx.x / queries / heads) * queries + blockIdx.x % queries) * keys;
    float most = -INFINITY, sum = 0.0f;
    for (int key = threadIdx.x; key < keys; key += 128) {
        most = fmaxf(most, score_of(float(x[row + key]), mask[key], scale));
    }
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (threadIdx.x % 32 == 0) mosts[threadIdx.x / 32] = most;
    __syncthreads();
    for (int warp = 0; warp < 4; ++warp) most = fmaxf(most, mosts[warp]);
    for (int key = threadIdx.x; key < keys; key += 128) {
        sum += expf(score_of(float(x[row + key]), mask[key], scale) - most);
    }
    sum = sum_of_block(sum);
    for (int key = threadIdx.x; key < keys; key += 128) {
        out[row + key] = out_t(expf(score_of(float(x[row + key]), mask[key], scale) - most) / sum);
    }
}
