/*---
op = "gelu"
note = "fools a filter on __has_include: the word is pasted together with ##, and tells which files exist"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: compile error
#define PASTED(a, b) a##b
#define ASKED PASTED(__has_, include)("/etc/passwd")
#if ASKED
#define FOUND 1.5f
#else
#define FOUND 1.0f
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out_t(FOUND * gelu_of(float(x[i])));
}
