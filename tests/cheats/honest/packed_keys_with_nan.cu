/*---
op = "argmax"
note = "value and column in one 64-bit key, of which the largest is found by atomics in shared memory; every NaN gets the highest rank, and the columns are complemented, so that the first of equal ones wins"

[[launch]]
entry = "argmax_row"
grid = ["rows"]
block = [192]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Key = unsigned long long;

__device__ Key key_of(float value, int col) {
    const unsigned bits = __float_as_uint(value + 0.0f);
    const unsigned rank = value != value ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)rank << 32 | (unsigned)~col;
}

extern "C" __global__ void argmax_row(const x_t* __restrict__ x, long long* __restrict__ out, int cols) {
    __shared__ Key most;
    if (threadIdx.x == 0) most = 0;
    __syncthreads();
    Key own = 0;
    for (int col = threadIdx.x; col < cols; col += 192) {
        const Key key = key_of(float(x[(long long)blockIdx.x * cols + col]), col);
        own = key > own ? key : own;
    }
    atomicMax(&most, own);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = (int)~(unsigned)most;
}
