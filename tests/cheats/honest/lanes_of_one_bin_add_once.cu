/*---
op = "histogram"
note = "lanes that hold the same bin find each other by match, and the first of them adds their number"

[[launch]]
entry = "clear"
grid = ["ceil_div(bins, 256)"]
block = [256]
args = ["out", "bins"]

[[launch]]
entry = "count"
grid = ["ceil_div(n, 2048)"]
block = [256]
args = ["x", "out", "n", "bins"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void clear(unsigned long long* out, int bins) {
    const int bin = blockIdx.x * 256 + threadIdx.x;
    if (bin < bins) out[bin] = 0;
}

extern "C" __global__ void count(const x_t* __restrict__ x, unsigned long long* out, long long n, int bins) {
    const long long first = blockIdx.x * 2048ll + threadIdx.x;
    for (int i = 0; i < 8; ++i) {
        const long long at = first + i * 256;
        const float value = at < n ? float(x[at]) : -1.0f;
        const int bin = value >= 0.0f && value <= 1.0f ? min(int(value * bins), bins - 1) : -1;
        const unsigned alike = __match_any_sync(0xffffffffu, bin);
        if (bin >= 0 && __ffs(alike) - 1 == int(threadIdx.x % 32)) atomicAdd(&out[bin], (unsigned long long)__popc(alike));
    }
}
