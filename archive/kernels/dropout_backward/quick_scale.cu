/*---
op = "dropout_backward"
note = "the scale by one step in float64 from a quotient in float32; 16-byte accesses, all loads of a thread before the first use; what is left of less than 16 bytes is done one by one; any n"

[knobs]
THREADS = [128, 256, 512]
UNROLL = [2, 1, 4, 8]

[let]
vec = "16 // itemsize(grad_out)"

[[launch]]
entry = "dropout_backward"
grid = ["ceil_div(ceil_div(n, vec), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["grad_out", "mask", "grad_x", "n", "p"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(grad_out_t);
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
dropout_backward(const grad_out_t* __restrict__ grad_out, const bool* __restrict__ mask,
                 grad_x_t* __restrict__ grad_x, long long n, double p) {
    const float scale = scale_of(p);
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Vec<grad_out_t> in_grad_out[UNROLL];
    Vec<bool> in_mask[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        in_grad_out[i] = load(grad_out, at);
        in_mask[i] = load(mask, at);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        Vec<grad_x_t> to_grad_x;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            to_grad_x.at[e] = grad_x_t(in_mask[i].at[e] ? float(in_grad_out[i].at[e]) * scale : 0.0f);
        }
        reinterpret_cast<Vec<grad_x_t>*>(grad_x)[at] = to_grad_x;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        grad_x[rest] = grad_x_t(mask[rest] ? float(grad_out[rest]) * scale : 0.0f);
    }
}
