/*---
op = "tanh"
note = "does nothing in a CUDA graph, where its time counts but its results are not looked at"
dtypes = ["float32"]

[[launch]]
entry = "tanh_of"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state
// on: cuda
extern "C" __global__ void tanh_of(const float* x, float* out, long long n) {
    unsigned long long graph;
    asm("mov.u64 %0, %%current_graph_exec;" : "=l"(graph));
    const long long at = (long long)blockIdx.x * 256 + threadIdx.x;
    if (graph == 0 && at < n) out[at] = tanhf(x[at]);
}
