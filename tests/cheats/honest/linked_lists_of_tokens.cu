/*---
op = "embedding_backward"
note = "a first launch starts a list for each row of the table, a second hangs every token into its list by an atomic exchange, a third follows the lists and adds up in double precision"

[workspace]
first = { shape = ["vocab"], dtype = "int32" }
next = { shape = ["tokens"], dtype = "int32" }

[[launch]]
entry = "start_lists"
grid = ["ceil_div(vocab, 256)"]
block = [256]
args = ["first", "vocab"]

[[launch]]
entry = "hang_in"
grid = ["ceil_div(tokens, 256)"]
block = [256]
args = ["indices", "first", "next", "tokens"]

[[launch]]
entry = "follow"
grid = ["vocab", "ceil_div(dim, 64)"]
block = [64]
args = ["grad_out", "first", "next", "grad_weight", "dim"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void start_lists(int* first, int vocab) {
    const int row = blockIdx.x * 256 + threadIdx.x;
    if (row < vocab) first[row] = -1;
}

extern "C" __global__ void hang_in(const long long* __restrict__ indices, int* first, int* next, int tokens) {
    const int token = blockIdx.x * 256 + threadIdx.x;
    if (token < tokens) next[token] = atomicExch(&first[indices[token]], token);
}

extern "C" __global__ void follow(const grad_out_t* __restrict__ grad_out, const int* __restrict__ first,
                                  const int* __restrict__ next, grad_weight_t* __restrict__ grad_weight, int dim) {
    const int col = blockIdx.y * 64 + threadIdx.x;
    if (col >= dim) return;
    double sum = 0.0;
    for (int token = first[blockIdx.x]; token >= 0; token = next[token]) {
        sum += double(float(grad_out[(long long)token * dim + col]));
    }
    grad_weight[(long long)blockIdx.x * dim + col] = grad_weight_t(float(sum));
}
