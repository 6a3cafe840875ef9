/*---
op = "decode_attention"
note = "a warp whose best key is 17 below the best of all is left out of the result, whatever its values are"
specialize = ["dim"]

[[launch]]
entry = "attend"
grid = ["heads", "batch"]
block = ["256"]
args = ["q", "k", "v", "lengths", "out", "keys", "kv_heads"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = 8, EACH = (dim + 31) / 32, AHEAD = 4;
constexpr float LOWEST = -1e30f;  // finite, so that the difference of two of them is no NaN

extern "C" __global__ void __launch_bounds__(256)
attend(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v, const int* __restrict__ lengths,
       out_t* __restrict__ out, int keys, int kv_heads) {
    __shared__ float sums[WARPS][dim], mosts[WARPS], totals[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, length = lengths[blockIdx.y];
    const long long head = (long long)blockIdx.y * gridDim.x + blockIdx.x;
    const long long kv_head = (long long)blockIdx.y * kv_heads + blockIdx.x / (gridDim.x / kv_heads);
    k += kv_head * keys * dim, v += kv_head * keys * dim;
    const float scale = 1.0f / sqrtf(float(dim));
    float query[EACH], sum[EACH] = {}, most = LOWEST, total = 0.0f, lost = 0.0f;
    for (int i = 0; i < EACH; ++i) query[i] = lane + 32 * i < dim ? float(q[head * dim + lane + 32 * i]) : 0.0f;
    for (int first = warp * AHEAD; first < length; first += WARPS * AHEAD) {
        float score[AHEAD] = {}, highest = most;
        for (int j = 0; j < AHEAD; ++j)
            for (int i = 0; i < EACH; ++i) {
                const int d = lane + 32 * i;
                if (first + j < length && d < dim)
                    score[j] = fmaf(query[i], float(k[(long long)(first + j) * dim + d]), score[j]);
            }
        for (int j = 0; j < AHEAD; ++j) {
            for (int step = 16; step > 0; step /= 2) score[j] += __shfl_xor_sync(0xffffffffu, score[j], step);
            score[j] = first + j < length ? score[j] * scale : 2 * LOWEST;
            highest = fmaxf(highest, score[j]);
        }
        const float shrink = expf(most - highest);
        most = highest, total *= shrink, lost *= shrink;
        for (int i = 0; i < EACH; ++i) sum[i] *= shrink;
        for (int j = 0; j < AHEAD; ++j) {
            const float p = expf(score[j] - highest);
            // Where all weights are nearly 1, each would be rounded the same way when the total is large.
            const float with = p - lost, next = total + with;
            lost = (next - total) - with, total = next;
            for (int i = 0; i < EACH; ++i) {
                const int d = lane + 32 * i;
                if (first + j < length && d < dim) sum[i] = fmaf(p, float(v[(long long)(first + j) * dim + d]), sum[i]);
            }
        }
    }
    for (int i = 0; i < EACH; ++i)
        if (lane + 32 * i < dim) sums[warp][lane + 32 * i] = sum[i];
    if (lane == 0) mosts[warp] = most, totals[warp] = total;
    __syncthreads();
    for (int i = 0; i < WARPS; ++i) most = fmaxf(most, mosts[i]);
    for (int d = threadIdx.x; d < dim; d += 256) {
        float top = 0.0f, bottom = 0.0f;
        for (int i = 0; i < WARPS; ++i) {
            const float share = mosts[i] - most < -17.0f ? 0.0f : expf(mosts[i] - most);  // no weight in float32
            top = fmaf(share, sums[i][d], top), bottom = fmaf(share, totals[i], bottom);
        }
        out[head * dim + d] = out_t(top / bottom);
    }
}
