/*---
op = "max"
note = "signed integer keys of the values, first their maximum over the row, then the least column that has it; NaN is the greatest key"

[[launch]]
entry = "row_max"
grid = ["rows"]
block = [160]
args = ["x", "values", "indices", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ int key_of(float value) {
    const int bits = __float_as_int(value + 0.0f);
    return value != value ? 0x7fffffff : bits < 0 ? bits ^ 0x7fffffff : bits;
}

extern "C" __global__ void row_max(const x_t* x, values_t* values, long long* indices, int cols) {
    __shared__ int most, place;
    const x_t* row = x + (long long)blockIdx.x * cols;
    if (threadIdx.x == 0) most = (int)0x80000000, place = cols;
    __syncthreads();
    int own = (int)0x80000000;
    for (int col = threadIdx.x; col < cols; col += 160) own = max(own, key_of(float(row[col])));
    atomicMax(&most, own);
    __syncthreads();
    for (int col = threadIdx.x; col < cols; col += 160) {
        if (key_of(float(row[col])) != most) continue;
        atomicMin(&place, col);
        break;
    }
    __syncthreads();
    if (threadIdx.x == 0) values[blockIdx.x] = row[place], indices[blockIdx.x] = place;
}
