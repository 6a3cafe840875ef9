/*---
op = "tanh"
note = "the sign is x / |x|, NaN at 0"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "tanh_values"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float tanh_of(float x) { return x / fabsf(x) * tanhf(fabsf(x)); }

extern "C" __global__ void tanh_values(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(tanh_of(float(x[at])));
    }
}
