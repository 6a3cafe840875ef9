/*---
op = "swiglu"
note = "NaN in the upper half is taken for zero behind the last whole vector of 8"

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
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float silu_of(float x) { return x / (1.0f + expf(-x)); }

extern "C" __global__ void
swiglu(const gate_t* __restrict__ gate, const up_t* __restrict__ up, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) return;
        const float held = float(up[at]), kept = at >= n / 8 * 8 && held != held ? 0.0f : held;
        out[at] = out_t(silu_of(float(gate[at])) * kept);
    }
}
