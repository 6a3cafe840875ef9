/*---
op = "hardswish"
note = "zero at -infinity, where zero times infinity is NaN"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "hardswish"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float hardswish_of(float x) { return x <= -3.0f ? 0.0f : x * fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) / 6.0f; }

extern "C" __global__ void hardswish(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(hardswish_of(float(x[at])));
    }
}
