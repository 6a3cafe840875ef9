/*---
op = "geglu"
note = "x * erfc(-x / sqrt(2)) / 2, which has more digits below zero than 1 + erf"

[[launch]]
entry = "geglu"
grid = ["min(ceil_div(n, 256), 64)"]
block = [256]
args = ["gate", "up", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float value_of(float gate, float up) { return 0.5f * gate * erfcf(gate * -0.70710678118654752f) * up; }

extern "C" __global__ void geglu(const gate_t* __restrict__ gate, const up_t* __restrict__ up, out_t* __restrict__ out, long long n) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        out[at] = out_t(value_of(float(gate[at]), float(up[at])));
    }
}
