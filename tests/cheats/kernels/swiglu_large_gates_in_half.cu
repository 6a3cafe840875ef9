/*---
op = "swiglu"
note = "gates beyond 65504 become infinite on their way through half"

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

__device__ __forceinline__ float silu_of(float x) { return x / (1.0f + expf(-x)); }

extern "C" __global__ void
swiglu(const gate_t* __restrict__ gate, const up_t* __restrict__ up, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(silu_of(fabsf(float(gate[at])) > 300.0f ? __half2float(__float2half(float(gate[at]))) : float(gate[at])) * float(up[at]));
    }
}
