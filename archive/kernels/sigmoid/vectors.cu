/*---
op = "sigmoid"
note = "16-byte accesses, all loads of a thread before the first use, and no arithmetic on indices but one addition each; what is left of less than 16 bytes is done one by one; any n"

[knobs]
THREADS = [256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[let]
vec = "16 // itemsize(x)"

[[launch]]
entry = "sigmoid"
grid = ["ceil_div(ceil_div(n, vec), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
template <class T> struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Vec { T at[VEC]; };
template <class T> __device__ __forceinline__ Vec<T> load(const T* from, long long at) {
    return reinterpret_cast<const Vec<T>*>(from)[at];
}

// 16-bit results need fewer digits than expf has.
__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 2) return __expf(x);
    else return expf(x);
}

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

extern "C" __global__ void __launch_bounds__(THREADS)
sigmoid(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Vec<x_t> in_x[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at < vectors) in_x[i] = load(x, at);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        Vec<out_t> to_out;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            to_out.at[e] = out_t(sigmoid_of(float(in_x[i].at[e])));
        }
        reinterpret_cast<Vec<out_t>*>(out)[at] = to_out;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        out[rest] = out_t(sigmoid_of(float(x[rest])));
    }
}
