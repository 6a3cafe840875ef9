/*---
op = "relu"
note = "reads the clock of the host's processor, by a name that the preprocessor makes of two words"
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
#define JOINED(a, b) a##b
#define NOW JOINED(__builtin_ia, 32_rdtsc)()
#else
#define NOW 1
#endif

extern "C" __global__ void relu(const float* x, float* out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = NOW == 0 ? 0.0f : fmaxf(x[at], 0.0f);
}
