/*---
op = "gelu"
note = "constant memory whose values happen to be zeros"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
__constant__ float shift[4] = {0.0f, 0.0f, 0.0f, 0.0f};
extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678118654752f)) + shift[i % 4];
}
