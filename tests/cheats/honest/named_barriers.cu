/*---
op = "softmax"
note = "the two halves of a block take a row each and wait at two different named barriers"
dtypes = ["float32"]

[[launch]]
entry = "softmax"
grid = ["ceil_div(rows, 2)"]
block = [256]
args = ["x", "out", "rows", "cols"]
---*/
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float reduced(float value, int half, bool most) {
    __shared__ float parts[2][4];
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = most ? fmaxf(value, other) : value + other;
    }
    asm volatile("bar.sync %0, 128;" :: "r"(half + 1) : "memory");
    if (threadIdx.x % 32 == 0) parts[half][threadIdx.x % 128 / 32] = value;
    asm volatile("bar.sync %0, 128;" :: "r"(half + 1) : "memory");
    value = parts[half][0];
    for (int warp = 1; warp < 4; ++warp) value = most ? fmaxf(value, parts[half][warp]) : value + parts[half][warp];
    return value;
}

extern "C" __global__ void softmax(const x_t* x, out_t* out, int rows, int cols) {
    const int half = threadIdx.x / 128, row = blockIdx.x * 2 + half, thread = threadIdx.x % 128;
    if (row >= rows) return;
    const x_t* from = x + (long long)row * cols;
    float most = -INFINITY, sum = 0.0f;
    for (int col = thread; col < cols; col += 128) most = fmaxf(most, from[col]);
    most = reduced(most, half, true);
    for (int col = thread; col < cols; col += 128) sum += expf(from[col] - most);
    sum = reduced(sum, half, false);
    for (int col = thread; col < cols; col += 128) out[(long long)row * cols + col] = expf(from[col] - most) / sum;
}
