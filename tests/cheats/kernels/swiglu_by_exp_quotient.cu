/*---
op = "swiglu"
note = "the sigmoid as exp(x) / (1 + exp(x)): for large gates inf / inf, NaN"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "swiglu"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["gate", "up", "out", "n"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float silu_of(float x) { const float power = expf(x);
    return x * (power / (1.0f + power)); }

extern "C" __global__ void
swiglu(const gate_t* __restrict__ gate, const up_t* __restrict__ up, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(silu_of(float(gate[at])) * float(up[at]));
    }
}
