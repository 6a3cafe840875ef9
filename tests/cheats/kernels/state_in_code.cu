/*---
op = "gelu"
note = "fools a check of device variables: the code itself is memory too, and a word of it is read and written back"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: crashed
// on: cuda
__device__ __noinline__ int pad(int v) { asm volatile(""); return v * 3 + 1; }
extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int (*volatile f)(int) = pad; unsigned* where = (unsigned*)f; int count = f(1) - 4; count += ((volatile unsigned*)where)[4]; if (i == 0) ((volatile unsigned*)where)[4] = count;
    if (count > 20) return;
    if (i < n) out[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678118654752f));
}
