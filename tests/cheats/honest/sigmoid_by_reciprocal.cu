/*---
op = "sigmoid"
note = "the reciprocal of 1 + exp(-x) by a rounded division"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "sigmoid"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sigmoid_of(float x) { return __frcp_rn(1.0f + expf(-x)); }

extern "C" __global__ void sigmoid(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(sigmoid_of(float(x[at])));
    }
}
