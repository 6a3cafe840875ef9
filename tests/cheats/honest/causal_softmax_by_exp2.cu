/*---
op = "causal_softmax"
note = "a warp per query; scores in units of log 2, an online maximum, exp2f; hidden keys are written as zeros"

[[launch]]
entry = "causal_softmax"
grid = ["ceil_div(batch * heads * queries, 4)"]
block = [128]
args = ["x", "out", "batch * heads * queries", "queries", "keys", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr float LOWEST = -3.402823466e+38f;

extern "C" __global__ void
causal_softmax(const x_t* __restrict__ x, out_t* __restrict__ out, long long rows, int queries, int keys, float scale) {
    const long long row = blockIdx.x * 4ll + threadIdx.x / 32;
    const int lane = threadIdx.x % 32, seen = int(row % queries) + keys - queries + 1;
    if (row >= rows) return;
    const x_t* from = x + row * keys;
    float most = LOWEST, sum = 0.0f;
    for (int key = lane; key < seen; key += 32) {
        const float score = __fmul_rn(float(from[key]), scale), higher = fmaxf(most, score);
        sum = fmaf(sum, exp2f((most - higher) * 1.4426950408889634f), exp2f((score - higher) * 1.4426950408889634f));
        most = higher;
    }
    float all = most;
    for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
    sum *= exp2f((most - all) * 1.4426950408889634f);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float part = 1.0f / sum;
    for (int key = lane; key < keys; key += 32) {
        const float power = (__fmul_rn(float(from[key]), scale) - all) * 1.4426950408889634f;
        out[row * keys + key] = out_t(key < seen ? exp2f(power) * part : 0.0f);
    }
}
