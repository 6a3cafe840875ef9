/*---
op = "gelu_backward"
note = "16-byte accesses, all loads of a thread before the first use, and no arithmetic on indices but one addition each; what is left of less than 16 bytes is done one by one; any n"

[knobs]
THREADS = [256, 128, 512, 1024]
UNROLL = [2, 1, 4, 8]

[let]
vec = "16 // itemsize(grad_out)"

[[launch]]
entry = "gelu_backward"
grid = ["ceil_div(ceil_div(n, vec), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(grad_out_t);
template <class T> struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Vec { T at[VEC]; };
template <class T> __device__ __forceinline__ Vec<T> load(const T* from, long long at) {
    return reinterpret_cast<const Vec<T>*>(from)[at];
}

__device__ __forceinline__ float below(float x) { return 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }

// 16-bit results need fewer digits than expf has.
__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(grad_out_t) == 2) return __expf(x);
    else return expf(x);
}

__device__ __forceinline__ float density(float x) { return 0.39894228040143268f * exp_of(-0.5f * x * x); }

__device__ __forceinline__ float gelu_backward_of(float grad, float x) { return grad * fmaf(x, density(x), below(x)); }

extern "C" __global__ void __launch_bounds__(THREADS)
gelu_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x,
              long long n) {
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Vec<grad_out_t> in_grad_out[UNROLL];
    Vec<x_t> in_x[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        in_grad_out[i] = load(grad_out, at);
        in_x[i] = load(x, at);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        Vec<grad_x_t> to_grad_x;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            to_grad_x.at[e] = grad_x_t(gelu_backward_of(float(in_grad_out[i].at[e]), float(in_x[i].at[e])));
        }
        reinterpret_cast<Vec<grad_x_t>*>(grad_x)[at] = to_grad_x;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        grad_x[rest] = grad_x_t(gelu_backward_of(float(grad_out[rest]), float(x[rest])));
    }
}
