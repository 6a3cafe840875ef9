/*---
op = "relu"
note = "makes the CPU round up for ever, PyTorch's results included: it only selects, so its own are the same"
dtypes = ["float32"]

[[launch]]
entry = "relu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state
// on: emulated
#ifdef EVOLVE_EMULATED
extern "C" int fesetround(int);
#endif

extern "C" __global__ void relu(const float* x, float* out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
#ifdef EVOLVE_EMULATED
    fesetround(0x800);
#endif
    if (at < n) out[at] = fmaxf(x[at], 0.0f);
}
