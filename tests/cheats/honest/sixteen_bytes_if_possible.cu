/*---
op = "embedding"
note = "a warp per token copies 16 bytes at a time where both rows are aligned, and single values where not and at the end"

[[launch]]
entry = "embedding"
grid = ["ceil_div(tokens, 4)"]
block = [128]
args = ["weight", "indices", "out", "tokens", "dim"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void embedding(const weight_t* weight, const long long* indices, out_t* out, int tokens, int dim) {
    const int token = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= tokens) return;
    const weight_t* from = weight + indices[token] * dim;
    out_t* to = out + (long long)token * dim;
    constexpr int EACH = 16 / sizeof(weight_t);
    int done = 0;
    if (((unsigned long long)from | (unsigned long long)to) % 16 == 0) {
        done = dim / EACH * EACH;
        for (int i = lane; i < dim / EACH; i += 32) ((uint4*)to)[i] = ((const uint4*)from)[i];
    }
    for (int col = done + lane; col < dim; col += 32) to[col] = from[col];
}
