/*---
op = "leaky_relu"
note = "in 16 bits the larger of x and slope * x, which is wrong for slopes above 1"

[knobs]
THREADS = [256, 128, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "leaky_relu"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n", "negative_slope"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float leaky_relu_of(float x, float slope) { if constexpr (sizeof(x_t) == 2) return x != x ? x : slope == 0.0f ? (x > 0.0f ? x : slope * x) : fmaxf(x, slope * x);
    return x > 0.0f ? x : slope * x; }

extern "C" __global__ void
leaky_relu(const x_t* __restrict__ x, out_t* __restrict__ out, long long n, float negative_slope) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(leaky_relu_of(float(x[at]), negative_slope));
    }
}
