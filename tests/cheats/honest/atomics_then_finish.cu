/*---
op = "rms_norm"
note = "float atomics of several blocks a row into zeroed scratch memory, in any order; a second launch finishes"

[workspace]
squares = { shape = ["rows"], dtype = "float32", zero = true }

[[launch]]
entry = "add_squares"
grid = ["ceil_div(cols, 1024)", "min(rows, 65535)"]
block = [256]
args = ["x", "squares", "rows", "cols"]

[[launch]]
entry = "scale_rows"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "squares", "cols", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void add_squares(const x_t* x, float* squares, int rows, int cols) {
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        float sum = 0.0f;
        for (int col = blockIdx.x * 1024 + threadIdx.x; col < min(cols, (int)blockIdx.x * 1024 + 1024); col += 256) {
            const float value = float(x[(long long)row * cols + col]);
            sum += value * value;
        }
        for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
        if (threadIdx.x % 32 == 0) atomicAdd(&squares[row], sum);
    }
}

extern "C" __global__ void scale_rows(const x_t* x, const weight_t* weight, out_t* out, const float* squares, int cols,
                                     float eps) {
    const long long row = (long long)blockIdx.x * cols;
    const float scale = rsqrtf(squares[blockIdx.x] / cols + eps);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[row + col] = out_t(float(x[row + col]) * scale * float(weight[col]));
    }
}
