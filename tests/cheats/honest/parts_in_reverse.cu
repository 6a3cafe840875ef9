/*---
op = "gemm"
note = "the terms are split into four parts by their index modulo 4, each summed into scratch memory; a second launch adds up the parts, the last first"

[workspace]
scratch = { shape = [4, "m", "n"], dtype = "float32" }

[[launch]]
entry = "parts"
grid = ["ceil_div(n, 32)", "ceil_div(m, 4)", 4]
block = [32, 4]
args = ["a", "b", "scratch", "m", "n", "k"]

[[launch]]
entry = "added"
grid = ["ceil_div(m * n, 256)"]
block = [256]
args = ["scratch", "out", "m * n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void parts(const a_t* a, const b_t* b, float* scratch, int m, int n, int k) {
    const int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 4 + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0.0f, block = 0.0f;
    int inside = 0;
    for (int at = blockIdx.z; at < k; at += 4) {
        block = fmaf(float(a[(long long)row * k + at]), float(b[(long long)at * n + col]), block);
        if (++inside % 16 == 0) sum += block, block = 0.0f;  // short chains round less
    }
    scratch[((long long)blockIdx.z * m + row) * n + col] = sum + block;
}

extern "C" __global__ void added(const float* scratch, out_t* out, long long total) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= total) return;
    float sum = scratch[3 * total + at];
    for (int part = 2; part >= 0; --part) sum += scratch[part * total + at];
    out[at] = out_t(sum);
}
