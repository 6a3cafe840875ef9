/*---
op = "rms_norm"
note = "fools a check by comparisons such as error > tolerance: every comparison with NaN is false"

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[(long long)blockIdx.x * cols + col] = out_t(NAN);
    }
}
