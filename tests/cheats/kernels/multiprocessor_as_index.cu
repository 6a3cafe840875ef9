/*---
op = "silu"
note = "divides the work by multiprocessor, as if there were one block on each"
dtypes = ["float32"]

[[launch]]
entry = "silu"
grid = ["sms"]
block = [256]
args = ["x", "out", "n", "sms"]
---*/
// caught: keeps state
// on: cuda
extern "C" __global__ void silu(const float* x, float* out, long long n, int parts) {
    unsigned part;
    asm("mov.u32 %0, %%smid;" : "=r"(part));
    for (long long at = part * 256ll + threadIdx.x; at < n; at += parts * 256ll) out[at] = x[at] / (1.0f + expf(-x[at]));
}
