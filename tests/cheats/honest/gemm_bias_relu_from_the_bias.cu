/*---
op = "gemm_bias_relu"
note = "a thread per result, in pieces of 32 terms; the bias is the first piece"

[[launch]]
entry = "gemm_bias_relu"
grid = ["ceil_div(m * n, 128)"]
block = [128]
args = ["x", "weight", "bias", "out", "m * n", "n", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
gemm_bias_relu(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
               out_t* __restrict__ out, long long results, int n, int k) {
    const long long at = blockIdx.x * 128ll + threadIdx.x;
    if (at >= results) return;
    const x_t* row = x + at / n * k;
    const weight_t* filter = weight + at % n * k;
    float sum = float(bias[at % n]);
    for (int first = 0; first < k; first += 32) {
        float piece = 0.0f;
        for (int term = first; term < min(first + 32, k); ++term) {
            piece = fmaf(float(row[term]), float(filter[term]), piece);
        }
        sum += piece;
    }
    out[at] = out_t(sum < 0.0f ? 0.0f : sum);
}
