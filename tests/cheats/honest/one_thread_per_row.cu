/*---
op = "softmax"
note = "a thread per row that adds up its terms one after another, in pieces of 64"
when = "cols <= 4096"

[[launch]]
entry = "softmax"
grid = ["ceil_div(rows, 64)"]
block = [64]
args = ["x", "out", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void softmax(const x_t* x, out_t* out, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += (long long)row * cols;
    out += (long long)row * cols;
    float most = -INFINITY, sum = 0.0f, piece = 0.0f;
    for (int col = 0; col < cols; ++col) most = fmaxf(most, float(x[col]));
    for (int col = 0; col < cols; ++col) {
        piece += expf(float(x[col]) - most);
        if (col % 64 == 63 || col == cols - 1) sum += piece, piece = 0.0f;
    }
    for (int col = 0; col < cols; ++col) out[col] = out_t(expf(float(x[col]) - most) / sum);
}
