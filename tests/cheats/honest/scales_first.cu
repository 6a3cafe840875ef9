/*---
op = "rms_norm"
note = "one launch writes the scale of every row, from squares in double, to scratch memory; another multiplies, one thread per element whatever its row"

[workspace]
scale = { shape = ["rows"], dtype = "float64" }

[[launch]]
entry = "scales"
grid = ["ceil_div(rows, 4)"]
block = [32, 4]
args = ["x", "scale", "rows", "cols", "eps"]

[[launch]]
entry = "multiplied"
grid = ["ceil_div(rows * cols, 256)"]
block = [256]
args = ["x", "weight", "scale", "out", "rows * cols", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void scales(const x_t* x, double* scale, int rows, int cols, float eps) {
    const long long row = blockIdx.x * 4ll + threadIdx.y;
    if (row >= rows) return;
    double sum = 0.0;
    for (int col = threadIdx.x; col < cols; col += 32) {
        const double value = float(x[row * cols + col]);
        sum += value * value;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) scale[row] = 1.0 / sqrt(sum / cols + eps);
}

extern "C" __global__ void multiplied(const x_t* x, const weight_t* weight, const double* scale, out_t* out,
                                      long long total, int cols) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < total) out[at] = out_t(float(float(x[at]) * scale[at / cols]) * float(weight[at % cols]));
}
