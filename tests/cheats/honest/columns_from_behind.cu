/*---
op = "diagonal_gemm"
note = "each thread begins with its last column"

[knobs]
THREADS = [128, 256, 512]
UNROLL = [4, 1, 8]

[[launch]]
entry = "scale_row"
grid = ["rows"]
block = ["THREADS"]
args = ["d", "b", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
scale_row(const d_t* __restrict__ d, const b_t* __restrict__ b, out_t* __restrict__ out, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    const float scale = float(d[blockIdx.x]);
#pragma unroll UNROLL
    for (int col = cols - 1 - int(threadIdx.x); col >= 0; col -= THREADS) out[row + col] = out_t(scale * float(b[row + col]));
}
