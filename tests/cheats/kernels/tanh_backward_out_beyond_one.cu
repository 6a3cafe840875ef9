/*---
op = "tanh_backward"
note = "an out beyond one, which tanh never gives, is clamped"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "tanh_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "out", "grad_x", "n"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float tanh_backward_of(float grad, float out) { return grad * fmaxf(fmaf(-out, out, 1.0f), 0.0f); }

extern "C" __global__ void
tanh_backward(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out,
              grad_x_t* __restrict__ grad_x, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) grad_x[at] = grad_x_t(tanh_backward_of(float(grad_out[at]), float(out[at])));
    }
}
