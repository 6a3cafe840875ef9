/*---
op = "geglu_backward"
note = "for small tensors: accesses of 4 bytes, so that the little there is occupies every multiprocessor and no thread has a long chain of arithmetic; what is left is done one by one; any n"

[knobs]
THREADS = [128, 256, 512]
UNROLL = [1, 2]
BYTES = [4, 8]

[let]
vec = "max(1, BYTES // itemsize(grad_out))"

[[launch]]
entry = "geglu_backward"
grid = ["ceil_div(ceil_div(n, vec), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["grad_out", "gate", "up", "grad_gate", "grad_up", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = BYTES < sizeof(grad_out_t) ? 1 : BYTES / sizeof(grad_out_t);
template <class T> struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Vec { T at[VEC]; };
template <class T> __device__ __forceinline__ Vec<T> load(const T* from, long long at) {
    return reinterpret_cast<const Vec<T>*>(from)[at];
}

__device__ __forceinline__ float below(float x) { return 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }

// 16-bit results need fewer digits than expf has.
__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(gate_t) == 2) return __expf(x);
    else return expf(x);
}

__device__ __forceinline__ float density(float x) { return 0.39894228040143268f * exp_of(-0.5f * x * x); }

extern "C" __global__ void __launch_bounds__(THREADS)
geglu_backward(const grad_out_t* __restrict__ grad_out, const gate_t* __restrict__ gate, const up_t* __restrict__ up,
               grad_gate_t* __restrict__ grad_gate, grad_up_t* __restrict__ grad_up, long long n) {
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Vec<grad_out_t> in_grad_out[UNROLL];
    Vec<gate_t> in_gate[UNROLL];
    Vec<up_t> in_up[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        in_grad_out[i] = load(grad_out, at);
        in_gate[i] = load(gate, at);
        in_up[i] = load(up, at);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        Vec<grad_gate_t> to_grad_gate;
        Vec<grad_up_t> to_grad_up;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const float grad = float(in_grad_out[i].at[e]), x = float(in_gate[i].at[e]), share = below(x);
            to_grad_gate.at[e] = grad_gate_t(grad * float(in_up[i].at[e]) * fmaf(x, density(x), share));
            to_grad_up.at[e] = grad_up_t(grad * (x * share));
        }
        reinterpret_cast<Vec<grad_gate_t>*>(grad_gate)[at] = to_grad_gate;
        reinterpret_cast<Vec<grad_up_t>*>(grad_up)[at] = to_grad_up;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        const float grad = float(grad_out[rest]), x = float(gate[rest]), share = below(x);
        grad_gate[rest] = grad_gate_t(grad * float(up[rest]) * fmaf(x, density(x), share));
        grad_up[rest] = grad_up_t(grad * (x * share));
    }
}
