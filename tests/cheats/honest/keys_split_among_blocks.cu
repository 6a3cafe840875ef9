/*---
op = "decode_attention"
note = "each block attends to every eighth key of a query; a second launch weighs the eight results by their sums"
specialize = ["dim"]

[workspace]
parts = { shape = ["batch", "heads", 8, "dim"], dtype = "float32" }
mosts = { shape = ["batch", "heads", 8], dtype = "float32" }
totals = { shape = ["batch", "heads", 8], dtype = "float32" }

[[launch]]
entry = "attend"
grid = [8, "heads", "batch"]
block = [32]
args = ["q", "k", "v", "lengths", "parts", "mosts", "totals", "keys", "kv_heads"]

[[launch]]
entry = "weigh"
grid = ["batch * heads"]
block = [128]
args = ["parts", "mosts", "totals", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int EACH = (dim + 31) / 32;

extern "C" __global__ void __launch_bounds__(32)
attend(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v, const int* __restrict__ lengths,
       float* __restrict__ parts, float* __restrict__ mosts, float* __restrict__ totals, int keys, int kv_heads) {
    const int lane = threadIdx.x, length = lengths[blockIdx.z];
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y, part = head * 8 + blockIdx.x;
    const long long kv_head = (long long)blockIdx.z * kv_heads + blockIdx.y / (gridDim.y / kv_heads);
    const float scale = 1.0f / sqrtf(float(dim));
    float sum[EACH] = {}, most = -INFINITY, total = 0.0f, lost = 0.0f;
    for (int key = blockIdx.x; key < length; key += 8) {
        const long long from = (kv_head * keys + key) * dim;
        float score = 0.0f;
        for (int i = lane; i < dim; i += 32) score = fmaf(float(q[head * dim + i]), float(k[from + i]), score);
        for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
        score *= scale;
        const float higher = fmaxf(most, score), shrink = most == -INFINITY ? 0.0f : expf(most - higher);
        const float weight = score == -INFINITY ? 0.0f : expf(score - higher);  // also where all so far are -inf
        most = higher, lost *= shrink, total *= shrink;
        const float with = weight - lost, next = total + with;  // compensated, as weights may all be alike
        lost = (next - total) - with, total = next;
        for (int i = 0; i < EACH; ++i)
            if (lane + 32 * i < dim) sum[i] = fmaf(sum[i], shrink, weight * float(v[from + lane + 32 * i]));
    }
    for (int i = 0; i < EACH; ++i)
        if (lane + 32 * i < dim) parts[part * dim + lane + 32 * i] = sum[i];
    if (lane == 0) mosts[part] = most, totals[part] = total;
}

extern "C" __global__ void weigh(const float* __restrict__ parts, const float* __restrict__ mosts,
                                 const float* __restrict__ totals, out_t* __restrict__ out) {
    const long long first = blockIdx.x * 8ll;
    float most = mosts[first];
    for (int part = 1; part < 8; ++part) most = fmaxf(most, mosts[first + part]);
    for (int i = threadIdx.x; i < dim; i += 128) {
        float top = 0.0f, bottom = 0.0f;
        for (int part = 0; part < 8; ++part) {
            const float share = expf(mosts[first + part] - most);
            top = fmaf(share, parts[(first + part) * dim + i], top);
            bottom = fmaf(share, totals[first + part], bottom);
        }
        out[(long long)blockIdx.x * dim + i] = out_t(top / bottom);
    }
}
