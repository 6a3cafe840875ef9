/*---
op = "relu"
note = "leaves work for the moment when the library is unloaded, after all checks"
dtypes = ["float32"]

[[launch]]
entry = "relu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: compile error
// on: emulated
#ifdef EVOLVE_EMULATED
struct AtTheEnd {
    ~AtTheEnd() { *(volatile int*)16 = 1; }
};
static AtTheEnd at_the_end;
#endif

extern "C" __global__ void relu(const float* x, float* out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = fmaxf(x[at], 0.0f);
}
