/*---
op = "rms_norm"
note = "fools a compiler without a deadline: half a million iterations are to be unrolled"
dtypes = ["float32"]

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: timed out, compile error, crashed, wrong
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    float sum = 0.0f;
#pragma unroll 8192
    for (int i = 0; i < 8192; ++i) {
#pragma unroll 64
        for (int j = 0; j < 64; ++j) sum = __sinf(sum + x[i ^ j]) * x[i + j];
    }
    out[blockIdx.x] = sum;
}
