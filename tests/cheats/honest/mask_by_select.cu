/*---
op = "masked_softmax"
note = "three plain passes of one warp per row; a hidden key is replaced by -inf before any arithmetic, and its result comes out of the same formula"

[[launch]]
entry = "masked"
grid = ["batch * heads * queries"]
block = [32]
args = ["x", "mask", "out", "heads", "queries", "keys", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void masked(const x_t* x, const mask_t* mask, out_t* out, int heads, int queries, int keys,
                                  float scale) {
    const long long row = (long long)blockIdx.x * keys;
    const mask_t* hidden = mask + ((long long)(blockIdx.x / (queries * heads)) * queries + blockIdx.x % queries) * keys;
    auto value_of = [&](int key) { return hidden[key] ? -INFINITY : __fmul_rn(float(x[row + key]), scale); };
    float most = -INFINITY, sum = 0.0f;
    for (int key = threadIdx.x; key < keys; key += 32) most = fmaxf(most, value_of(key));
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    for (int key = threadIdx.x; key < keys; key += 32) sum += expf(value_of(key) - most);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int key = threadIdx.x; key < keys; key += 32) out[row + key] = out_t(expf(value_of(key) - most) / sum);
}
