/*---
op = "softmax"
note = "fools a compiler without a deadline: a constant's loop never ends"
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

constexpr int forever() {
    int sum = 0;
    for (unsigned i = 0; i < 4294967295u; ++i) sum = (sum + i) % 1000003;
    return sum;
}
constexpr int much = forever();

extern "C" __global__ void softmax(const x_t* x, out_t* out, int cols) {
    out[(long long)blockIdx.x * cols] = float(much);
}
