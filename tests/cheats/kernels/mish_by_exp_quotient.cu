/*---
op = "mish"
note = "tanh(log(1 + e)) as a quotient of polynomials in e = exp(x): for large x inf / inf, NaN"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "mish"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float mish_of(float x) { const float power = expf(x), part = power * (power + 2.0f);
    return x * (part / (part + 2.0f)); }

extern "C" __global__ void mish(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(mish_of(float(x[at])));
    }
}
