/*---
op = "int8_gemv"
note = "makes floats of weights by setting the low bits of 2**23 and subtracting it; one warp per result, in double precision"

[[launch]]
entry = "int8_gemv"
grid = ["n", "m"]
block = [32]
args = ["x", "weight", "scales", "out", "n", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(32)
int8_gemv(const x_t* x, const weight_t* weight, const float* scales, out_t* out, int n, int k) {
    const x_t* left = x + (long long)blockIdx.y * k;
    const weight_t* right = weight + (long long)blockIdx.x * k;
    double sum = 0.0;
    for (int at = threadIdx.x; at < k; at += 32) {
        const unsigned low = (unsigned)(unsigned char)right[at] ^ 0x80u;  // the weight plus 128
        const float value = __uint_as_float(0x4b000000u | low) - 8388736.0f;
        sum += double(float(left[at])) * value;
    }
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) out[(long long)blockIdx.y * n + blockIdx.x] = out_t(float(sum * scales[blockIdx.x]));
}
