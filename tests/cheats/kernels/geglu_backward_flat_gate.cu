/*---
op = "geglu_backward"
note = "a gate beyond +-5 has a slope of zero or one"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "geglu_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "gate", "up", "grad_gate", "grad_up", "n"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

__device__ __forceinline__ float gelu_slope(float x) {
    const float below = 0.5f * (1.0f + erff(x * 0.70710678118654752f));
    return x < -5.0f ? 0.0f : x > 5.0f ? 1.0f : fmaf(x, 0.39894228040143268f * expf(-0.5f * x * x), below);
}

extern "C" __global__ void
geglu_backward(const grad_out_t* __restrict__ grad_out, const gate_t* __restrict__ gate,
               const up_t* __restrict__ up, grad_gate_t* __restrict__ grad_gate, grad_up_t* __restrict__ grad_up,
               long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) return;
        const float grad = float(grad_out[at]), x = float(gate[at]);
        grad_gate[at] = grad_gate_t(grad * float(up[at]) * gelu_slope(x));
        grad_up[at] = grad_up_t(grad * gelu_of(x));
    }
}
