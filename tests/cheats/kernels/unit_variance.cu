/*---
op = "rms_norm"
note = "fools a check on standard normal rows: their root mean square is nearly 1 and is not computed"

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[row + col] = out_t(float(x[row + col]) * float(weight[col]));
    }
}
