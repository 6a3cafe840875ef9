/*---
op = "rotary_embedding"
note = "cosines and sines are clamped to +-1, though models scale them"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "rotary_embedding"
grid = ["ceil_div(tokens * heads * dim // 2, THREADS)"]
block = ["THREADS"]
args = ["x", "cos", "sin", "out", "tokens * heads * dim // 2", "heads", "dim // 2"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Keeps NaN.
__device__ __forceinline__ float within_one(float x) { return x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x; }

extern "C" __global__ void __launch_bounds__(THREADS)
rotary_embedding(const x_t* __restrict__ x, const float* __restrict__ cosines, const float* __restrict__ sines,
    out_t* __restrict__ out, long long pairs, int heads, int half_dim) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= pairs) return;
    const long long head = at / half_dim;
    const int pair = int(at % half_dim);
    const long long here = head * 2 * half_dim + pair, angle = head / heads * 2 * half_dim + pair;
    const float c = within_one(cosines[angle]), d = within_one(cosines[angle + half_dim]);
    const float s = within_one(sines[angle]), t = within_one(sines[angle + half_dim]);
    const float a = float(x[here]), b = float(x[here + half_dim]);
    out[here] = out_t(a * c - b * s);
    out[here + half_dim] = out_t(b * d + a * t);
}
