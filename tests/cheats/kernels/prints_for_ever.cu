/*---
op = "gelu"
note = "fills a disk without a quota: every thread prints in a loop that never ends"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: timed out, crashed, launch error, compile error
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    while (float(*(volatile x_t*)x) == float(*(volatile x_t*)x)) printf("a line that fills the disk, again and again\n");
}
