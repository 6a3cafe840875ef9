/*---
op = "mish_backward"
note = "one exponential and one quotient instead of log1p and tanh; 16-byte accesses, all loads of a thread before the first use, and no arithmetic on indices but one addition each; what is left of less than 16 bytes is done one by one; any n"

[knobs]
THREADS = [256, 128, 512, 1024]
UNROLL = [2, 1, 4, 8]

[let]
vec = "16 // itemsize(grad_out)"

[[launch]]
entry = "mish_backward"
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

// 16-bit results need fewer digits than expf has.
__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(grad_out_t) == 2) return __expf(x);
    else return expf(x);
}

__device__ __forceinline__ float quotient(float a, float b) {
    if constexpr (sizeof(grad_out_t) == 2) return __fdividef(a, b);
    else return a / b;
}

// With e = exp(x) and w = e * (e + 2), tanh(log1p(e)) is w / (w + 2), and 1 minus its square is 4 * (e + 1)^2 / (w + 2)^2,
// in which nothing cancels. From 20 on the slope is 1.
__device__ __forceinline__ float mish_backward_of(float grad, float x) {
    const float e = exp_of(fminf(x, 20.0f)), w = e * (e + 2.0f), share = quotient(1.0f, w + 2.0f);
    const float rest = x > 20.0f ? 0.0f : 4.0f * e * (e + 1.0f) * share;
    return grad * (share * fmaf(x, rest, w));
}

extern "C" __global__ void __launch_bounds__(THREADS)
mish_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x,
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
            to_grad_x.at[e] = grad_x_t(mish_backward_of(float(in_grad_out[i].at[e]), float(in_x[i].at[e])));
        }
        reinterpret_cast<Vec<grad_x_t>*>(grad_x)[at] = to_grad_x;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        grad_x[rest] = grad_x_t(mish_backward_of(float(grad_out[rest]), float(x[rest])));
    }
}
