/*---
op = "softmax"
note = "fools a launcher that ignores errors: 64 KB of shared memory cannot be declared in the source"
dtypes = ["float32"]

[[launch]]
entry = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "cols"]
---*/
// caught: compile error, illegal, launch error, wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void softmax(const x_t* x, out_t* out, int cols) {
    __shared__ float row[16384];
    for (int col = threadIdx.x; col < cols; col += blockDim.x) row[col % 16384] = x[(long long)blockIdx.x * cols + col];
    __syncthreads();
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[(long long)blockIdx.x * cols + col] = row[cols - col];
}
