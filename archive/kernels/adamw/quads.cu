/*---
op = "adamw"
note = "four values a thread at a time in every tensor, so that 16-bit and float32 tensors alike are read and written without gaps by each instruction; loads and stores that stay out of the caches' way; powers by squaring, done by one thread while the block's loads are on the way; any n"

[knobs]
THREADS = [256, 128, 512]
UNROLL = [2, 1, 4]

[[launch]]
entry = "adamw_quads"
grid = ["max(1, ceil_div(n // 4, THREADS * UNROLL))"]
block = ["THREADS"]
args = ["param", "grad", "exp_avg", "exp_avg_sq", "new_param", "new_exp_avg", "new_exp_avg_sq", "n", "lr", "beta1", "beta2", "eps", "weight_decay", "step"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> struct alignas(4 * sizeof(T)) Quad { T at[4]; };
template <class T> union Bits {
    Quad<T> quad;
    uint2 of8;
    uint4 of16;
    __device__ Bits() {}
};

template <class T> __device__ __forceinline__ Quad<T> load(const T* from, long long at) {
    Bits<T> bits;
    if constexpr (sizeof(T) == 4) bits.of16 = __ldcs(reinterpret_cast<const uint4*>(from) + at);
    else bits.of8 = __ldcs(reinterpret_cast<const uint2*>(from) + at);
    return bits.quad;
}

template <class T> __device__ __forceinline__ void store(T* to, long long at, const Quad<T>& quad) {
    Bits<T> bits;
    bits.quad = quad;
    if constexpr (sizeof(T) == 4) __stcs(reinterpret_cast<uint4*>(to) + at, bits.of16);
    else __stcs(reinterpret_cast<uint2*>(to) + at, bits.of8);
}

__device__ __forceinline__ double power(double base, int exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1, base *= base) {
        if (exponent & 1) result *= base;
    }
    return result;
}

struct Factors {
    float kept, old1, old2, new1, new2, least, rate, root;
};

template <class P> __device__ __forceinline__ P moved(const Factors& f, P param, float slope, float& mean, float& square) {
    mean = f.old1 * mean + f.new1 * slope;
    square = f.old2 * square + f.new2 * slope * slope;
    return P(f.kept * float(param) - f.rate * mean / (sqrtf(square) / f.root + f.least));
}

extern "C" __global__ void __launch_bounds__(THREADS)
adamw_quads(const param_t* __restrict__ param, const grad_t* __restrict__ grad, const float* __restrict__ exp_avg,
            const float* __restrict__ exp_avg_sq, new_param_t* __restrict__ new_param, float* __restrict__ new_exp_avg,
            float* __restrict__ new_exp_avg_sq, long long n, double lr, double beta1, double beta2, double eps,
            double weight_decay, int step) {
    const long long quads = n / 4, first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Quad<param_t> old[UNROLL];
    Quad<grad_t> slope[UNROLL];
    Quad<float> mean[UNROLL], square[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= quads) break;
        old[i] = load(param, at), slope[i] = load(grad, at);
        mean[i] = load(exp_avg, at), square[i] = load(exp_avg_sq, at);
    }
    __shared__ float rate, root;
    if (threadIdx.x == 0) {
        rate = float(lr / (1.0 - power(beta1, step)));
        root = float(sqrt(1.0 - power(beta2, step)));
    }
    __syncthreads();
    const Factors factors{float(1.0 - lr * weight_decay), float(beta1), float(beta2), float(1.0 - beta1),
                          float(1.0 - beta2), float(eps), rate, root};
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= quads) break;
        Quad<new_param_t> made;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            made.at[e] = moved(factors, old[i].at[e], float(slope[i].at[e]), mean[i].at[e], square[i].at[e]);
        }
        store(new_param, at, made), store(new_exp_avg, at, mean[i]), store(new_exp_avg_sq, at, square[i]);
    }
    const long long rest = quads * 4 + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        float one = exp_avg[rest], other = exp_avg_sq[rest];
        new_param[rest] = moved(factors, param[rest], float(grad[rest]), one, other);
        new_exp_avg[rest] = one, new_exp_avg_sq[rest] = other;
    }
}
