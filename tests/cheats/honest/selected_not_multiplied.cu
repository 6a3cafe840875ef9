/*---
op = "dropout"
note = "every product is computed, and bits of it are kept or cleared by a mask of ones or zeros: whatever was dropped is zero, NaN too"

[[launch]]
entry = "dropout"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "mask", "out", "n", "p"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void dropout(const x_t* x, const bool* mask, out_t* out, long long n, double p) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= n) return;
    const unsigned kept = 0u - (unsigned)(mask[at] ? 1 : 0);
    out[at] = out_t(__uint_as_float(__float_as_uint(float(x[at]) * float(1.0 / (1.0 - p))) & kept));
}
