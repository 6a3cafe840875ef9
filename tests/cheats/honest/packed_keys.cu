/*---
op = "argmax"
note = "64-bit keys of the value and the inverted column, NaN as the greatest; every warp offers its best to an atomic maximum"

[[launch]]
entry = "argmax"
grid = ["rows"]
block = [192]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Key = unsigned long long;

__device__ Key key_of(float value, int col) {
    unsigned bits = __float_as_uint(value + 0.0f);  // -0.0 becomes 0.0
    bits = value != value ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (Key)bits << 32 | (0xffffffffu - (unsigned)col);
}

extern "C" __global__ void argmax(const x_t* x, long long* out, int cols) {
    __shared__ Key best;
    if (threadIdx.x == 0) best = 0;
    __syncthreads();
    Key own = 0;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        const Key key = key_of(float(x[(long long)blockIdx.x * cols + col]), col);
        own = key > own ? key : own;
    }
    for (int step = 16; step > 0; step /= 2) {
        const Key other = __shfl_down_sync(0xffffffffu, own, step);
        own = other > own ? other : own;
    }
    if (threadIdx.x % 32 == 0) atomicMax(&best, own);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = 0xffffffffu - (unsigned)best;
}
