/*---
op = "geglu"
note = "for small tensors: accesses of 4 bytes, so that the little there is occupies every multiprocessor and no thread has a long chain of arithmetic; what is left is done one by one; any n"

[knobs]
THREADS = [128, 256, 512]
UNROLL = [1, 2]
BYTES = [4, 8]

[let]
vec = "max(1, BYTES // itemsize(gate))"

[[launch]]
entry = "geglu"
grid = ["ceil_div(ceil_div(n, vec), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["gate", "up", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = BYTES < sizeof(gate_t) ? 1 : BYTES / sizeof(gate_t);
template <class T> struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Vec { T at[VEC]; };
template <class T> __device__ __forceinline__ Vec<T> load(const T* from, long long at) {
    return reinterpret_cast<const Vec<T>*>(from)[at];
}

// The normal distribution. In 16 bits its lower tail is exp2 of a minimax polynomial on [0, 6], within 5e-5 of itself,
// with fewer instructions than erff has; beyond, it is below 1e-9.
__device__ __forceinline__ float below(float x) {
    if constexpr (sizeof(gate_t) == 4) return 0.5f * (1.0f + erff(x * 0.70710678118654752f));
    const float size = fminf(fabsf(x), 6.0f);
    float p = 2.29900633712532e-05f;
    p = fmaf(p, size, -0.0006111000548116863f);
    p = fmaf(p, size, 0.0071955653838813305f);
    p = fmaf(p, size, -0.05118533596396446f);
    p = fmaf(p, size, -0.4612719416618347f);
    p = fmaf(p, size, -1.1501742601394653f);
    p = fmaf(p, size, -1.000064730644226f);
    const float tail = exp2f(p);
    return x > 0.0f ? 1.0f - tail : x < -6.0f ? 0.0f : tail;
}

extern "C" __global__ void __launch_bounds__(THREADS)
geglu(const gate_t* __restrict__ gate, const up_t* __restrict__ up, out_t* __restrict__ out, long long n) {
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Vec<gate_t> in_gate[UNROLL];
    Vec<up_t> in_up[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        in_gate[i] = load(gate, at);
        in_up[i] = load(up, at);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        Vec<out_t> to_out;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const float x = float(in_gate[i].at[e]);
            to_out.at[e] = out_t(x * below(x) * float(in_up[i].at[e]));
        }
        reinterpret_cast<Vec<out_t>*>(out)[at] = to_out;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        const float x = float(gate[rest]);
        out[rest] = out_t(x * below(x) * float(up[rest]));
    }
}
