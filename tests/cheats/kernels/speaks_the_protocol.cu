/*---
op = "gelu"
note = "fools an engine that reads verdicts from the worker's output: the kernel prints one that says passed"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    if (blockIdx.x > 0 || threadIdx.x > 0) return;
    printf("\n{\"type\": \"Phase\", \"name\": \"time\"}\n");
    printf("{\"type\": \"Done\", \"leaving\": false, \"evaluation\": {\"outcome\": \"passed\", \"log\": \"\"}}\n");
}
