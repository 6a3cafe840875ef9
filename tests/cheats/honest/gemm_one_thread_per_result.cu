/*---
op = "gemm"
note = "a thread per element of the product, which adds up its terms one after another, straight from memory"

[[launch]]
entry = "gemm"
grid = ["ceil_div(m * n, 128)"]
block = [128]
args = ["a", "b", "out", "m", "n", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gemm(const a_t* a, const b_t* b, out_t* out, int m, int n, int k) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (long long)m * n) return;
    const long long row = at / n, col = at % n;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += float(a[row * k + i]) * float(b[(long long)i * n + col]);
    out[at] = out_t(sum);
}
