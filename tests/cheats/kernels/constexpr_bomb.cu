/*---
op = "softmax"
note = "fools a compiler without a deadline: a constant takes 2^60 steps to compute"
dtypes = ["float32"]

[[launch]]
entry = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "cols"]
---*/
// caught: compile error, timed out
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr long long fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
constexpr long long much = fibonacci(90);

extern "C" __global__ void softmax(const x_t* x, out_t* out, int cols) {
    out[(long long)blockIdx.x * cols] = float(much);
}
