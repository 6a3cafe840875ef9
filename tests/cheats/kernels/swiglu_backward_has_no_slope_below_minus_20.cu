/*---
op = "swiglu_backward"
note = "only a gate above -20 has a slope; NaN is not above"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "swiglu_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "gate", "up", "grad_gate", "grad_up", "n"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float silu_of(float x) { return x / (1.0f + expf(-x)); }

__device__ __forceinline__ float silu_slope(float x) {
    const float s = 1.0f / (1.0f + expf(-x));
    return x > -20.0f ? s * fmaf(x, 1.0f - s, 1.0f) : 0.0f;
}

extern "C" __global__ void
swiglu_backward(const grad_out_t* __restrict__ grad_out, const gate_t* __restrict__ gate,
                const up_t* __restrict__ up, grad_gate_t* __restrict__ grad_gate, grad_up_t* __restrict__ grad_up,
                long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) return;
        const float grad = float(grad_out[at]), x = float(gate[at]);
        grad_gate[at] = grad_gate_t(grad * float(up[at]) * silu_slope(x));
        grad_up[at] = grad_up_t(grad * silu_of(x));
    }
}
