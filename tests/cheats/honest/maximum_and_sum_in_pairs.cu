/*---
op = "softmax"
note = "one pass over the row by a warp: every lane keeps a maximum and a sum, a lane without columns none; pairs are merged by shuffles, and NaN stays in the sum"
when = "cols <= 16384"  # in longer rows, a lane adds too many small terms to a large sum

[[launch]]
entry = "softmax_row"
grid = ["ceil_div(rows, 4)"]
block = [32, 4]
args = ["x", "out", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Pair {
    float most, sum;
};

__device__ Pair merged(Pair a, Pair b) {
    const float most = fmaxf(a.most, b.most);
    if (most == -INFINITY) return {most, a.sum + b.sum};  // nothing yet, or NaN, or nothing but -inf
    return {most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
}

extern "C" __global__ void softmax_row(const x_t* __restrict__ x, out_t* __restrict__ out, int rows, int cols) {
    const int row = blockIdx.x * 4 + threadIdx.y;
    if (row >= rows) return;
    x += (long long)row * cols, out += (long long)row * cols;
    Pair all = {-INFINITY, 0.0f};
    for (int col = threadIdx.x; col < cols; col += 32) {
        const float value = float(x[col]);
        all = merged(all, {value, value == value ? 1.0f : value});
    }
    for (int step = 16; step > 0; step /= 2) {
        all = merged(all, {__shfl_xor_sync(0xffffffffu, all.most, step), __shfl_xor_sync(0xffffffffu, all.sum, step)});
    }
    for (int col = threadIdx.x; col < cols; col += 32) out[col] = out_t(expf(float(x[col]) - all.most) / all.sum);
}
