/*---
op = "cross_entropy_backward"
note = "ignored rows are multiplied by zero, which leaves NaN if the loss's gradient is not finite"

[knobs]
THREADS = [256, 64, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[workspace]
kept = { shape = [1], dtype = "int32" }

[[launch]]
entry = "count_kept"
grid = [1]
block = [1024]
args = ["targets", "kept", "rows", "ignore_index"]

[[launch]]
entry = "cross_entropy_backward_row"
grid = ["rows"]
block = ["THREADS"]
args = ["grad_loss", "logits", "targets", "lse", "kept", "grad_logits", "vocab", "ignore_index", "label_smoothing"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(1024)
count_kept(const long long* __restrict__ targets, int* __restrict__ kept, int rows, long long ignore_index) {
    __shared__ int counts[32];
    int count = 0;
    for (int row = threadIdx.x; row < rows; row += 1024) count += targets[row] != ignore_index;
    for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
    __syncthreads();
    count = counts[threadIdx.x % 32];
    for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
    if (threadIdx.x == 0) *kept = count;
}

extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy_backward_row(const float* __restrict__ grad_loss, const logits_t* __restrict__ logits,
                           const long long* __restrict__ targets, const float* __restrict__ lse,
                           const int* __restrict__ kept, grad_logits_t* __restrict__ grad_logits, int vocab,
                           long long ignore_index, float label_smoothing) {
    const long long row = (long long)blockIdx.x * vocab, target = targets[blockIdx.x];
    const float scale = (target != ignore_index) * (*grad_loss / max(*kept, 1));
    const float even = label_smoothing / vocab, all = lse[blockIdx.x];
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < vocab; col += THREADS) {
        const float log_prob = float(logits[row + col]) - all;
        // At the target expm1 has the 1 already taken off: rounded near 1, little would be left of the difference.
        const float off = col == target ? expm1f(log_prob) + (label_smoothing - even) : expf(log_prob) - even;
        grad_logits[row + col] = grad_logits_t(off * scale);
    }
}
