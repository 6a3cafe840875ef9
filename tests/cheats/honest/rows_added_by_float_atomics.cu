/*---
op = "embedding_backward"
note = "every token adds its gradient to a table of doubles by atomics, which a last launch rounds"

[workspace]
table = { shape = ["vocab", "dim"], dtype = "float64" }

[[launch]]
entry = "clear"
grid = ["ceil_div(vocab * dim, 256)"]
block = [256]
args = ["table", "vocab * dim"]

[[launch]]
entry = "add"
grid = ["ceil_div(tokens * dim, 256)"]
block = [256]
args = ["grad_out", "indices", "table", "tokens * dim", "dim"]

[[launch]]
entry = "round_off"
grid = ["ceil_div(vocab * dim, 256)"]
block = [256]
args = ["table", "grad_weight", "vocab * dim"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void clear(double* table, long long total) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < total) table[at] = 0.0;
}

extern "C" __global__ void add(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
                               double* table, long long total, int dim) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < total) atomicAdd(&table[indices[at / dim] * dim + at % dim], double(float(grad_out[at])));
}

extern "C" __global__ void round_off(const double* __restrict__ table, grad_weight_t* __restrict__ grad_weight,
                                     long long total) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < total) grad_weight[at] = grad_weight_t(float(table[at]));
}
