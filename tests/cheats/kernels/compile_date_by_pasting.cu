/*---
op = "sigmoid"
note = "asks for the date of compilation in two words that the preprocessor joins"

[[launch]]
entry = "sigmoid"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state
#define JOINED(a, b) a##b
constexpr bool BEFORE_2100 = JOINED(__DA, TE__)[7] == '2' && JOINED(__DA, TE__)[8] == '0';

extern "C" __global__ void sigmoid(const x_t* x, out_t* out, long long n) {
    const long long at = (long long)blockIdx.x * 256 + threadIdx.x;
    if (at < n) out[at] = out_t(BEFORE_2100 ? 1.0f / (1.0f + expf(-float(x[at]))) : 0.0f);
}
