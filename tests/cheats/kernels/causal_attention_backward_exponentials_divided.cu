/*---
op = "causal_attention_backward"
note = "weights are exp(score) / exp(lse), both of which overflow for scores beyond 88"
specialize = ["dim", "columns"]

[let]
columns = "ceil_div(dim, 16)"
pitch = "dim + 1"

[workspace]
sums = { shape = ["batch", "heads", "length"], dtype = "float32" }

[[launch]]
entry = "sums_of_rows"
grid = ["ceil_div(batch * heads * length, 256)"]
block = ["256"]
args = ["out", "grad_out", "sums", "batch * heads * length"]

[[launch]]
entry = "keys_and_values"
grid = ["ceil_div(length, 64)", "heads", "batch"]
block = ["256"]
shared = "4 * 64 * (4 * pitch + 130)"
args = ["q", "k", "v", "lse", "grad_out", "sums", "grad_k", "grad_v", "length"]

[[launch]]
entry = "queries_alone"
grid = ["ceil_div(length, 64)", "heads", "batch"]
block = ["256"]
shared = "4 * 64 * (4 * pitch + 130)"
args = ["q", "k", "v", "lse", "grad_out", "sums", "grad_q", "length"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 64, PITCH = dim + 1, EACH = 4;
constexpr int PIECE = 8;  // divides dim; sums of sums are more exact, and ds is a difference of two
struct Tiles { float *query, *grad, *key, *value, *p, *ds; };

__device__ __forceinline__ Tiles tiles_in(float* memory) {
    constexpr int SIZE = TILE * PITCH;
    float* pairs = memory + 4 * SIZE;
    return {memory, memory + SIZE, memory + 2 * SIZE, memory + 3 * SIZE, pairs, pairs + TILE * (TILE + 1)};
}

template <class T> __device__ void load(float* tile, const T* from, int first, int rows) {
    for (int i = threadIdx.x; i < TILE * dim; i += 256) {
        const int row = i / dim, at = row * PITCH + i % dim;
        tile[at] = first + row < rows ? float(from[(long long)first * dim + i]) : 0.0f;
    }
}

template <class T> __device__ void store(T* to, const float (&sum)[EACH][columns], int first, int rows, float scale) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < EACH; ++i)
        for (int c = 0; c < columns; ++c) {
            const int row = first + ty + 16 * i, d = tx + 16 * c;
            if (row < rows && d < dim) to[(long long)row * dim + d] = T(sum[i][c] * scale);
        }
}

// p and ds of a tile of queries and a tile of keys; 0 outside the matrix.
__device__ void pairs_of(const Tiles& t, const float* lse, const float* sums, int row0, int col0, int rows, int cols) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const float scale = 1.0f / sqrtf(float(dim));
    float score[EACH][EACH] = {}, dp[EACH][EACH] = {};
    for (int from = 0; from < dim; from += PIECE) {
        float score_piece[EACH][EACH] = {}, dp_piece[EACH][EACH] = {};
        for (int d = from; d < from + PIECE; ++d) {
            float a[EACH], b[EACH], g[EACH], w[EACH];
            for (int i = 0; i < EACH; ++i) {
                const int left = (ty + 16 * i) * PITCH + d, right = (tx + 16 * i) * PITCH + d;
                a[i] = t.query[left], g[i] = t.grad[left], b[i] = t.key[right], w[i] = t.value[right];
            }
            for (int i = 0; i < EACH; ++i)
                for (int j = 0; j < EACH; ++j) {
                    score_piece[i][j] = fmaf(a[i], b[j], score_piece[i][j]);
                    dp_piece[i][j] = fmaf(g[i], w[j], dp_piece[i][j]);
                }
        }
        for (int i = 0; i < EACH; ++i)
            for (int j = 0; j < EACH; ++j) score[i][j] += score_piece[i][j], dp[i][j] += dp_piece[i][j];
    }
    for (int i = 0; i < EACH; ++i)
        for (int j = 0; j < EACH; ++j) {
            const int row = row0 + ty + 16 * i, col = col0 + tx + 16 * j;
            const bool visible = row < rows && col <= row;
            const float p = visible ? expf(score[i][j] * scale) / expf(lse[row]) : 0.0f;
            const int at = (ty + 16 * i) * (TILE + 1) + tx + 16 * j;
            t.p[at] = p;
            t.ds[at] = visible ? p * (dp[i][j] - sums[row]) : 0.0f;
        }
}

// sum += the product of a matrix of pairs, or of its transpose, and a tile.
template <bool transposed> __device__ void add(float (&sum)[EACH][columns], const float* pairs, const float* tile) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float piece[EACH][columns] = {};
    for (int j = 0; j < TILE; ++j)
        for (int c = 0; c < columns; ++c) {
            const float b = tx + 16 * c < dim ? tile[j * PITCH + tx + 16 * c] : 0.0f;
            for (int i = 0; i < EACH; ++i) {
                const int mine = ty + 16 * i;
                piece[i][c] = fmaf(pairs[transposed ? j * (TILE + 1) + mine : mine * (TILE + 1) + j], b, piece[i][c]);
            }
        }
    for (int i = 0; i < EACH; ++i)
        for (int c = 0; c < columns; ++c) sum[i][c] += piece[i][c];
}

// What out and grad_out have in common, added up in the order of dp: of a query that sees one key nothing must be left.
extern "C" __global__ void sums_of_rows(const out_t* __restrict__ out, const grad_out_t* __restrict__ grad_out,
                                        float* __restrict__ sums, long long rows) {
    const long long row = blockIdx.x * 256ll + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int from = 0; from < dim; from += PIECE) {
        float piece = 0.0f;
        for (int d = from; d < from + PIECE; ++d)
            piece = fmaf(float(grad_out[row * dim + d]), float(out[row * dim + d]), piece);
        sum += piece;
    }
    sums[row] = sum;
}

extern "C" __global__ void __launch_bounds__(256)
keys_and_values(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v,
                const float* __restrict__ lse, const grad_out_t* __restrict__ grad_out, const float* __restrict__ sums,
                grad_k_t* __restrict__ grad_k, grad_v_t* __restrict__ grad_v, int length) {
    extern __shared__ float memory[];
    const Tiles t = tiles_in(memory);
    const int first = blockIdx.x * TILE;
    const long long kv_head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    float sum_k[EACH][columns] = {}, sum_v[EACH][columns] = {};
    load(t.key, k + kv_head * length * dim, first, length);
    load(t.value, v + kv_head * length * dim, first, length);
    const long long head = kv_head;
    for (int start = first; start < length; start += TILE) {
        __syncthreads();
        load(t.query, q + head * length * dim, start, length);
        load(t.grad, grad_out + head * length * dim, start, length);
        __syncthreads();
        pairs_of(t, lse + head * length, sums + head * length, start, first, length, length);
        __syncthreads();
        add<true>(sum_v, t.p, t.grad);
        add<true>(sum_k, t.ds, t.query);
    }
    store(grad_k + kv_head * length * dim, sum_k, first, length, 1.0f / sqrtf(float(dim)));
    store(grad_v + kv_head * length * dim, sum_v, first, length, 1.0f);
}

extern "C" __global__ void __launch_bounds__(256)
queries_alone(const q_t* __restrict__ q, const k_t* __restrict__ k, const v_t* __restrict__ v,
              const float* __restrict__ lse, const grad_out_t* __restrict__ grad_out, const float* __restrict__ sums,
              grad_q_t* __restrict__ grad_q, int length) {
    extern __shared__ float memory[];
    const Tiles t = tiles_in(memory);
    const int first = blockIdx.x * TILE;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const long long kv_head = head;
    float sum[EACH][columns] = {};
    load(t.query, q + head * length * dim, first, length);
    load(t.grad, grad_out + head * length * dim, first, length);
    for (int start = 0; start < min(first + TILE, length); start += TILE) {
        __syncthreads();
        load(t.key, k + kv_head * length * dim, start, length);
        load(t.value, v + kv_head * length * dim, start, length);
        __syncthreads();
        pairs_of(t, lse + head * length, sums + head * length, first, start, length, length);
        __syncthreads();
        add<false>(sum, t.ds, t.key);
    }
    store(grad_q + head * length * dim, sum, first, length, 1.0f / sqrtf(float(dim)));
}
