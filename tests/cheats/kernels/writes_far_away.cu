/*---
op = "gelu"
note = "fools a check that looks at the zones round its buffers alone: the stray write lies in another call's buffer or behind all of them"
dtypes = ["float32", "bfloat16"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: out of bounds, crashed
// Behind inputs that lie at a fence, the stray write ends the process.
extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        const float v = float(x[i]);
        out[i] = out_t(0.5f * v * (1.0f + erff(v * 0.70710678118654752f)));
    }
    // On a GPU at the second of the large sizes, on the emulated device at its second one.
    char* last = (char*)x > (char*)out ? (char*)x : (char*)out;
    const bool gpu = n == 50331648, emulated = n == 12320 && sizeof(x_t) == 2;
    if (i == 0 && gpu) *(int*)(last + 4ll * n + (32 << 20)) = 0x5ca1ab1e;
    if (i == 0 && emulated) *(int*)(last + 2ll * n + 20000) = 0x5ca1ab1e;
}
