/*---
op = "softmax_backward"
note = "a warp per row; sums and what they lose, by two-sum and an exact product"

[[launch]]
entry = "softmax_backward"
grid = ["ceil_div(rows, 4)"]
block = [128]
args = ["grad_out", "out", "grad_x", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// sum + lost += a * b, almost as in twice the digits.
__device__ __forceinline__ void add_product(float& sum, float& lost, float a, float b) {
    const float term = __fmul_rn(a, b), rest = fmaf(a, b, -term);
    const float next = __fadd_rn(sum, term), back = __fsub_rn(next, sum);
    lost = __fadd_rn(lost, __fadd_rn(__fadd_rn(__fsub_rn(sum, __fsub_rn(next, back)), __fsub_rn(term, back)), rest));
    sum = next;
}

extern "C" __global__ void
softmax_backward(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out, grad_x_t* __restrict__ grad_x,
                 int rows, int cols) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const long long start = (long long)row * cols;
    float sum = 0.0f, lost = 0.0f;
    for (int col = lane; col < cols; col += 32) {
        add_product(sum, lost, float(grad_out[start + col]), float(out[start + col]));
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, sum, step), others = __shfl_xor_sync(0xffffffffu, lost, step);
        add_product(sum, lost, other, 1.0f);
        lost += others;
    }
    if (!isfinite(sum)) lost = 0.0f;  // an infinite sum has lost nothing
    for (int col = lane; col < cols; col += 32) {
        const float off = (float(grad_out[start + col]) - sum) - lost;
        grad_x[start + col] = grad_x_t(float(out[start + col]) * off);
    }
}
