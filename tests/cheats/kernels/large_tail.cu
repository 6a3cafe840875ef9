/*---
op = "gelu"
note = "fools a check whose unlisted shapes are all small: beyond nine million values what is left after whole vectors of eight is left alone"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n"]
---*/
// caught: wrong
// on: cuda
// at: confirm
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < (n > 9000000 ? n / 8 * 8 : n)) out[at] = out_t(gelu_of(float(x[at])));
    }
}
