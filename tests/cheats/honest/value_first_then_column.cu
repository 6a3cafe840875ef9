/*---
op = "max"
note = "a first pass finds the largest value and whether there is NaN, a second the lowest column that holds it"

[[launch]]
entry = "max_row"
grid = ["rows"]
block = [256]
args = ["x", "values", "indices", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void max_row(const x_t* __restrict__ x, values_t* __restrict__ values,
                                   long long* __restrict__ indices, int cols) {
    __shared__ float mosts[8];
    __shared__ int first;
    x += (long long)blockIdx.x * cols;
    float most = -INFINITY;
    bool without = false;
    for (int col = threadIdx.x; col < cols; col += 256) {
        const float value = float(x[col]);
        without |= value != value;
        most = fmaxf(most, value);
    }
    without = __syncthreads_or(without);
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (threadIdx.x % 32 == 0) mosts[threadIdx.x / 32] = most;
    if (threadIdx.x == 0) first = cols;
    __syncthreads();
    for (int warp = 0; warp < 8; ++warp) most = fmaxf(most, mosts[warp]);
    for (int col = threadIdx.x; col < cols; col += 256) {
        const float value = float(x[col]);
        if (without ? value != value : value == most) {
            atomicMin(&first, col);
            break;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) values[blockIdx.x] = x[first], indices[blockIdx.x] = first;
}
