/*---
op = "gelu"
note = "fools an emulated device that compiles for the GPU too: only the emulator's half calls the C library"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: compile error, unsupported, crashed
// on: emulated
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

#ifdef EVOLVE_EMULATED
extern "C" [[noreturn]] void _exit(int);
#define LEAVE() _exit(0)
#else
#define LEAVE()
#endif

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out_t(gelu_of(float(x[i])));
    if (i == n - 1) LEAVE();
}
