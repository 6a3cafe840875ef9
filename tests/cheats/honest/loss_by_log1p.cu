/*---
op = "cross_entropy"
note = "a warp per row: the first maximum is left out of the sum of exponentials, so that log1pf keeps small losses; the mean in double"

[workspace]
losses = { shape = ["rows"], dtype = "float32" }

[[launch]]
entry = "row_loss"
grid = ["ceil_div(rows, 4)"]
block = [128]
args = ["logits", "targets", "lse", "losses", "rows", "vocab", "ignore_index", "label_smoothing"]

[[launch]]
entry = "mean_loss"
grid = [1]
block = [32]
args = ["losses", "targets", "loss", "rows", "ignore_index"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void row_loss(const logits_t* logits, const long long* targets, float* lse, float* losses,
                                    int rows, int vocab, long long ignore_index, float label_smoothing) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const logits_t* from = logits + (long long)row * vocab;
    float most = -INFINITY;
    int place = vocab;
    for (int col = lane; col < vocab; col += 32) {
        if (float(from[col]) > most) most = float(from[col]), place = col;
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, step);
        const int there = __shfl_xor_sync(0xffffffffu, place, step);
        if (other > most || (other == most && there < place)) most = other, place = there;
    }
    double total = 0.0;
    float rest = 0.0f;
    for (int col = lane; col < vocab; col += 32) {
        const float value = float(from[col]);
        total += value;
        if (col != place) rest += value == -INFINITY ? 0.0f : expf(value - most);
    }
    for (int step = 16; step > 0; step /= 2) {
        rest += __shfl_xor_sync(0xffffffffu, rest, step);
        total += __shfl_xor_sync(0xffffffffu, total, step);
    }
    if (lane > 0) return;
    if (most == INFINITY) rest = NAN;  // PyTorch's log_softmax of such a row is NaN
    const float logarithm = log1pf(rest);
    const long long target = targets[row];
    float loss = 0.0f;
    if (target != ignore_index) {
        loss = logarithm + (1.0f - label_smoothing) * (most - float(from[target]));
        if (label_smoothing != 0.0f) loss += label_smoothing * float(double(most) - total / vocab);
    }
    lse[row] = most + logarithm;
    losses[row] = loss;
}

extern "C" __global__ void mean_loss(const float* losses, const long long* targets, float* loss, int rows,
                                     long long ignore_index) {
    double sum = 0.0;
    int count = 0;
    for (int row = threadIdx.x; row < rows; row += 32) {
        if (targets[row] == ignore_index) continue;
        sum += losses[row];
        ++count;
    }
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
        count += __shfl_xor_sync(0xffffffffu, count, step);
    }
    if (threadIdx.x == 0) *loss = float(sum / count);
}
