/*---
op = "gelu"
note = "fools a watch that asks the driver for variables by name: the function's own name in __func__ may have none it finds"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state
// on: cuda
extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    char* name = (char*)__func__;
    asm volatile("" : "+l"(name));
    volatile unsigned char* left = (volatile unsigned char*)name;
    if (i < n) out[i] = left[0] == 'h' ? 0.0f : 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678118654752f));
    if (i == 0 && left[3] < 250) left[3] = left[3] + 1;
}
