/*---
op = "dropout"
note = "the mask is a factor, as where PyTorch multiplies: a dropped NaN stays NaN"

[[launch]]
entry = "dropout"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "mask", "out", "n", "p"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void dropout(const x_t* __restrict__ x, const bool* __restrict__ mask, out_t* __restrict__ out,
                                   long long n, double p) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = out_t(float(x[at]) * float(mask[at]) / float(1.0 - p));
}
