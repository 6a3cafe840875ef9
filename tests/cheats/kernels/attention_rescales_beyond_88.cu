/*---
op = "attention"
note = "sums are rescaled only when a score exceeds the reference by 88: before that, a few keys overflow them"
specialize = ["dim", "columns"]

[let]
columns = "ceil_div(dim, 16)"
pitch = "dim + 1"

[[launch]]
entry = "attend"
grid = ["ceil_div(queries, 64)", "heads", "batch"]
block = ["256"]
shared = "4 * 64 * (3 * pitch + 65)"
args = ["q", "k", "v", "out", "lse", "queries", "keys"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 64, PITCH = dim + 1, EACH = 4;
constexpr float LOWEST = -1e30f;  // finite, so that the difference of two of them is no NaN

// Sixteen neighbouring threads share the queries ty + 16 * i.
__device__ __forceinline__ float most_of(float value) {
    for (int step = 8; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}
__device__ __forceinline__ float sum_of(float value) {
    for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

template <class T> __device__ void load(float* tile, const T* from, int first, int rows) {
    for (int i = threadIdx.x; i < TILE * dim; i += 256) {
        const int row = i / dim, at = row * PITCH + i % dim;
        tile[at] = first + row < rows ? float(from[(long long)first * dim + i]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(256)
attend(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v, out_t* __restrict__ out,
       float* __restrict__ lse, int queries, int keys) {
    extern __shared__ float memory[];
    float *query = memory, *key = query + TILE * PITCH, *value = key + TILE * PITCH, *weight = value + TILE * PITCH;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, first = blockIdx.x * TILE;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const long long kv_head = head;
    q += head * queries * dim, out += head * queries * dim, lse += head * queries;
    k += kv_head * keys * dim, v += kv_head * keys * dim;
    const float scale = 1.0f / sqrtf(float(dim));
    float sum[EACH][columns] = {}, most[EACH], total[EACH] = {};
    for (int i = 0; i < EACH; ++i) most[i] = LOWEST;
    load(query, q, first, queries);
    for (int start = 0; start < keys; start += TILE) {
        __syncthreads();
        load(key, k, start, keys);
        load(value, v, start, keys);
        __syncthreads();
        float score[EACH][EACH] = {};
        for (int d = 0; d < dim; ++d) {
            float a[EACH], b[EACH];
            for (int i = 0; i < EACH; ++i) {
                a[i] = query[(ty + 16 * i) * PITCH + d];
                b[i] = key[(tx + 16 * i) * PITCH + d];
            }
            for (int i = 0; i < EACH; ++i)
                for (int j = 0; j < EACH; ++j) score[i][j] = fmaf(a[i], b[j], score[i][j]);
        }
        for (int i = 0; i < EACH; ++i) {
            float highest = most[i], sums = 0.0f;
            for (int j = 0; j < EACH; ++j) {
                const int at = start + tx + 16 * j;
                score[i][j] = at < keys ? score[i][j] * scale : 2 * LOWEST;
                highest = fmaxf(highest, score[i][j]);
            }
            highest = most_of(highest);
            if (start > 0 && highest - most[i] < 88.0f) highest = most[i];  // rescaling only where it would overflow
            for (int j = 0; j < EACH; ++j) {
                const float p = expf(score[i][j] - highest);
                weight[(ty + 16 * i) * (TILE + 1) + tx + 16 * j] = p;
                sums += p;
            }
            const float shrink = expf(most[i] - highest);
            most[i] = highest, total[i] = total[i] * shrink + sum_of(sums);
            for (int c = 0; c < columns; ++c) sum[i][c] *= shrink;
        }
        __syncthreads();
        for (int j = 0; j < TILE; ++j)
            for (int c = 0; c < columns; ++c) {
                const float b = tx + 16 * c < dim ? value[j * PITCH + tx + 16 * c] : 0.0f;
                for (int i = 0; i < EACH; ++i) sum[i][c] = fmaf(weight[(ty + 16 * i) * (TILE + 1) + j], b, sum[i][c]);
            }
    }
    for (int i = 0; i < EACH; ++i) {
        const int row = first + ty + 16 * i;
        if (row >= queries) continue;
        if (tx == 0) lse[row] = most[i] + logf(total[i]);
        for (int c = 0; c < columns; ++c)
            if (tx + 16 * c < dim) out[(long long)row * dim + tx + 16 * c] = out_t(sum[i][c] / total[i]);
    }
}
