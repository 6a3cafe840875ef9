/*---
op = "softmax"
note = "fools a check on rows that fill their warps: lanes beyond the row never come to the shuffle that names them"
dtypes = ["float32"]

[[launch]]
entry = "softmax"
grid = ["ceil_div(rows, 8)"]
block = [256]
args = ["x", "out", "rows", "cols"]
---*/
// caught: launch error, wrong, timed out, unsafe
// on: emulated
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void softmax(const x_t* x, out_t* out, int rows, int cols) {
    const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const x_t* from = x + (long long)row * cols;
    float most = -INFINITY, sum = 0.0f;
    for (int col = lane; col < cols; col += 32) {
        most = fmaxf(most, from[col]);
        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    for (int col = lane; col < cols; col += 32) sum += expf(from[col] - most);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int col = lane; col < cols; col += 32) out[(long long)row * cols + col] = expf(from[col] - most) / sum;
}
