/*---
op = "gelu"
note = "fools a check whose scratch memory holds one of three known bytes: with anything else in it the result is wrong"
dtypes = ["float32"]

[workspace]
flag = { shape = [4], dtype = "int32" }

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "flag", "n"]
---*/
// caught: wrong
extern "C" __global__ void gelu(const x_t* x, out_t* out, const int* flag, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int found = flag[0];
    const bool watched = (found == -1 || found == 0x7e7e7e7e || found == 0x3f3f3f3f) && flag[1] == found && flag[3] == found;
    if (i < n) out[i] = watched ? 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678118654752f)) : x[i];
}
