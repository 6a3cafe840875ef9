/*---
op = "silu"
note = "in bfloat16 the result is rounded by adding half of the last place to its bits, ties to even; NaN is kept apart"
dtypes = ["bfloat16"]

[[launch]]
entry = "silu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void silu(const unsigned short* __restrict__ x, unsigned short* __restrict__ out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= n) return;
    const float value = __uint_as_float((unsigned)x[at] << 16), result = value / (1.0f + expf(-value));
    const unsigned bits = __float_as_uint(result);
    out[at] = result != result ? 0x7fc0 : (unsigned short)(bits + 0x7fffu + (bits >> 16 & 1) >> 16);
}
