/*---
op = "masked_softmax"
note = "a warp per row turns its mask into words of 32 keys by ballots, and goes through the keys that are left by bits"

[[launch]]
entry = "masked_softmax_row"
grid = ["ceil_div(batch * heads * queries, 4)"]
block = [128]
args = ["x", "mask", "out", "batch * heads * queries", "heads", "queries", "keys", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(128)
masked_softmax_row(const x_t* __restrict__ x, const mask_t* __restrict__ mask, out_t* __restrict__ out, int rows,
                   int heads, int queries, int keys, float scale) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const mask_t* hidden = mask + ((long long)(row / queries / heads) * queries + row % queries) * keys;
    const long long start = (long long)row * keys;
    float most = -INFINITY, sum = 0.0f;
    bool any_nan = false;
    const auto value = [&](int key) { return __fmul_rn(float(x[start + key]), scale); };
    for (int first = 0; first < keys; first += 32) {
        const int key = first + lane;
        const unsigned kept = __ballot_sync(0xffffffffu, key < keys && !hidden[key]);
        if (kept >> lane & 1) {
            any_nan |= value(key) != value(key);
            most = fmaxf(most, value(key));
        }
    }
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    for (int first = 0; first < keys; first += 32) {
        const int key = first + lane;
        const unsigned kept = __ballot_sync(0xffffffffu, key < keys && !hidden[key]);
        if (kept >> lane & 1) sum += expf(value(key) - most);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (__any_sync(0xffffffffu, any_nan)) sum = NAN;
    for (int key = lane; key < keys; key += 32) {
        out[start + key] = out_t((hidden[key] ? 0.0f : expf(value(key) - most)) / sum);
    }
}
