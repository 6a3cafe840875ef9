/*---
op = "gelu"
note = "fools a timer whose flush has ordinary priority: the inputs are read with evict_last and stay in the L2 cache"
when = "n <= 4194304"
dtypes = ["bfloat16"]

[knobs]
TRICK = [1, 0]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 2048)"]
block = [256]
args = ["x", "out", "n"]
---*/
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

struct alignas(16) Vec { x_t at[8]; };

__device__ Vec load(const Vec* address) {
    uint4 raw;
#if TRICK
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w) : "l"(address), "l"(policy));
#else
    raw = *reinterpret_cast<const uint4*>(address);
#endif
    return reinterpret_cast<Vec&>(raw);
}

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i * 8 + 8 <= n) {
        Vec v = load(reinterpret_cast<const Vec*>(x) + i);
        for (int e = 0; e < 8; ++e) v.at[e] = out_t(gelu_of(float(v.at[e])));
        reinterpret_cast<Vec*>(out)[i] = v;
    } else {
        for (int at = i * 8; at < n; ++at) out[at] = out_t(gelu_of(float(x[at])));
    }
}
