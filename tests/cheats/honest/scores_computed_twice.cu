/*---
op = "attention"
note = "a warp per query goes through the keys twice: for the greatest score, then for the weights, and stores no scores"
specialize = ["dim"]

[[launch]]
entry = "attend"
grid = ["ceil_div(queries, 4)", "heads", "batch"]
block = [128]
args = ["q", "k", "v", "out", "lse", "queries", "keys"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int EACH = (dim + 31) / 32, TOGETHER = 64;

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(128)
attend(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v, out_t* __restrict__ out,
       float* __restrict__ lse, int queries, int keys) {
    const int lane = threadIdx.x % 32, query = blockIdx.x * 4 + threadIdx.x / 32;
    if (query >= queries) return;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y, row = head * queries + query;
    const float scale = 1.0f / sqrtf(float(dim));
    float own[EACH], sum[EACH] = {};
    for (int i = 0; i < EACH; ++i) own[i] = lane + 32 * i < dim ? float(q[row * dim + lane + 32 * i]) : 0.0f;
    const auto score = [&](int key) {
        float part = 0.0f;
        for (int i = 0; i < EACH; ++i)
            if (lane + 32 * i < dim) part = fmaf(own[i], float(k[(head * keys + key) * dim + lane + 32 * i]), part);
        return sum_of_warp(part) * scale;
    };
    float most = score(0), total = 0.0f;
    for (int key = 1; key < keys; ++key) most = fmaxf(most, score(key));
    for (int first = 0; first < keys; first += TOGETHER) {  // sums of sums: thousands of terms in turn are too inexact
        float few = 0.0f, part[EACH] = {};
        for (int key = first; key < min(keys, first + TOGETHER); ++key) {
            const float weight = expf(score(key) - most);
            few += weight;
            for (int i = 0; i < EACH; ++i)
                if (lane + 32 * i < dim) part[i] = fmaf(weight, float(v[(head * keys + key) * dim + lane + 32 * i]), part[i]);
        }
        total += few;
        for (int i = 0; i < EACH; ++i) sum[i] += part[i];
    }
    if (lane == 0) lse[row] = most + logf(total);
    for (int i = 0; i < EACH; ++i)
        if (lane + 32 * i < dim) out[row * dim + lane + 32 * i] = out_t(sum[i] / total);
}
