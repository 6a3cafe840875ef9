/*---
op = "gelu"
note = "knobs with a negative value, with zero, with a single value; one of them is unused"
require = ["SHIFT + 4 >= 0", "ONLY == 7"]

[knobs]
SHIFT = [-3, 0, 5]
ONLY = [7]
UNUSED = [-2147483648, 2147483647]
LOG_THREADS = [7, 5, 10]

[let]
threads = "max(32, min(1024, 128 * (LOG_THREADS - 6)))"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, threads) + SHIFT + 4"]
block = ["threads"]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    static_assert(ONLY == 7 && UNUSED < 0, "the first value of a knob is in force");
#if SHIFT < 0
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#else
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
#endif
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
}
