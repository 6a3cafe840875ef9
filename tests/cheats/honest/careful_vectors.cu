/*---
op = "gelu"
note = "16-byte loads and stores between the edges that are no whole vectors, which are found by looking at the addresses"
dtypes = ["bfloat16", "float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Vec { x_t at[VEC]; };

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int before = min(n, (int)((16 - (unsigned long long)x % 16) % 16 / sizeof(x_t)));
    const bool together = ((unsigned long long)x - (unsigned long long)out) % 16 == 0;
    const int whole = together ? (n - before) / VEC : 0;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < whole) {
        Vec v = reinterpret_cast<const Vec*>(x + before)[i];
        for (int e = 0; e < VEC; ++e) v.at[e] = x_t(gelu_of(float(v.at[e])));
        reinterpret_cast<Vec*>(out + before)[i] = v;
    }
    if (i < n && (i < before || i >= before + whole * VEC)) out[i] = out_t(gelu_of(float(x[i])));
}
