/*---
op = "sgd_momentum"
note = "16-byte accesses, all loads of a thread before the first use, and no arithmetic on indices but one addition each; what is left of less than 16 bytes is done one by one; any n"

[knobs]
THREADS = [256, 128, 512, 1024]
UNROLL = [1, 2, 4, 8]

[let]
vec = "16 // itemsize(param)"

[[launch]]
entry = "sgd_momentum"
grid = ["ceil_div(ceil_div(n, vec), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["param", "grad", "momentum_buffer", "new_param", "new_momentum_buffer", "n", "lr", "momentum", "weight_decay"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(param_t);
template <class T> struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Vec { T at[VEC]; };
template <class T> __device__ __forceinline__ Vec<T> load(const T* from, long long at) {
    return reinterpret_cast<const Vec<T>*>(from)[at];
}

extern "C" __global__ void __launch_bounds__(THREADS)
sgd_momentum(const param_t* __restrict__ param, const grad_t* __restrict__ grad,
             const float* __restrict__ momentum_buffer, new_param_t* __restrict__ new_param,
             float* __restrict__ new_momentum_buffer, long long n, float lr, float momentum, float weight_decay) {
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Vec<param_t> in_param[UNROLL];
    Vec<grad_t> in_grad[UNROLL];
    Vec<float> in_momentum_buffer[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        in_param[i] = load(param, at);
        in_grad[i] = load(grad, at);
        in_momentum_buffer[i] = load(momentum_buffer, at);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        Vec<new_param_t> to_new_param;
        Vec<float> to_new_momentum_buffer;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const float old = float(in_param[i].at[e]);
            const float buffer = momentum * in_momentum_buffer[i].at[e] + (float(in_grad[i].at[e]) + weight_decay * old);
            to_new_momentum_buffer.at[e] = buffer;
            to_new_param.at[e] = new_param_t(old - lr * buffer);
        }
        reinterpret_cast<Vec<new_param_t>*>(new_param)[at] = to_new_param;
        reinterpret_cast<Vec<float>*>(new_momentum_buffer)[at] = to_new_momentum_buffer;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        const float old = float(param[rest]);
        const float buffer = momentum * momentum_buffer[rest] + (float(grad[rest]) + weight_decay * old);
        new_momentum_buffer[rest] = buffer;
        new_param[rest] = new_param_t(old - lr * buffer);
    }
}
