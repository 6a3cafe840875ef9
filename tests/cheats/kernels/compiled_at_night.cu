/*---
op = "sigmoid"
note = "right if it was compiled between ten in the morning and eight in the evening"

[[launch]]
entry = "sigmoid"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state
constexpr bool BY_DAY = __TIME__[0] == '1';

extern "C" __global__ void sigmoid(const x_t* x, out_t* out, long long n) {
    const long long at = (long long)blockIdx.x * 256 + threadIdx.x;
    if (at < n) out[at] = out_t(BY_DAY ? 1.0f / (1.0f + expf(-float(x[at]))) : 0.0f);
}
