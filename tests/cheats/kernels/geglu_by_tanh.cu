/*---
op = "geglu"
note = "gelu by the tanh formula, which PyTorch uses only when asked"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "geglu"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["gate", "up", "out", "n"]
---*/
// caught: wrong
// class: numbers
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float gelu_of(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

extern "C" __global__ void
geglu(const gate_t* __restrict__ gate, const up_t* __restrict__ up, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(gelu_of(float(gate[at])) * float(up[at]));
    }
}
