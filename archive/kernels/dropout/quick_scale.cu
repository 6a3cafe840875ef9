/*---
op = "dropout"
note = "the scale by one step in float64 from a quotient in float32; 16-byte accesses, all loads of a thread before the first use; what is left of less than 16 bytes is done one by one; any n"

[knobs]
THREADS = [128, 256, 512]
UNROLL = [2, 1, 4, 8]

[let]
vec = "16 // itemsize(x)"

[[launch]]
entry = "dropout"
grid = ["ceil_div(ceil_div(n, vec), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["x", "mask", "out", "n", "p"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
template <class T> struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Vec { T at[VEC]; };
template <class T> __device__ __forceinline__ Vec<T> load(const T* from, long long at) {
    return reinterpret_cast<const Vec<T>*>(from)[at];
}

// 1 / (1 - p) rounded once, by one step from the quotient in float32: a quotient in float64 would take most of a small call.
__device__ __forceinline__ float scale_of(double p) {
    const double kept = 1.0 - p;
    if (kept < 1e-30) return float(1.0 / kept);
    const double near = __fdividef(1.0f, float(kept));
    return float(fma(near, fma(-kept, near, 1.0), near));
}

extern "C" __global__ void __launch_bounds__(THREADS)
dropout(const x_t* __restrict__ x, const bool* __restrict__ mask, out_t* __restrict__ out, long long n, double p) {
    const float scale = scale_of(p);
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Vec<x_t> in_x[UNROLL];
    Vec<bool> in_mask[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        in_x[i] = load(x, at);
        in_mask[i] = load(mask, at);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        Vec<out_t> to_out;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            to_out.at[e] = out_t(in_mask[i].at[e] ? float(in_x[i].at[e]) * scale : 0.0f);
        }
        reinterpret_cast<Vec<out_t>*>(out)[at] = to_out;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        out[rest] = out_t(mask[rest] ? float(x[rest]) * scale : 0.0f);
    }
}
