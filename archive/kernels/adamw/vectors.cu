/*---
op = "adamw"
note = "16-byte accesses, all loads of a thread before the first use, and no arithmetic on indices but one addition each; what is left of less than 16 bytes is done one by one; any n"

[knobs]
THREADS = [256, 128, 512, 1024]
UNROLL = [1, 2, 4, 8]

[let]
vec = "16 // itemsize(param)"

[[launch]]
entry = "adamw_step"
grid = ["ceil_div(ceil_div(n, vec), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["param", "grad", "exp_avg", "exp_avg_sq", "new_param", "new_exp_avg", "new_exp_avg_sq", "n", "lr", "beta1", "beta2", "eps", "weight_decay", "step"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(param_t);
template <class T> struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Vec { T at[VEC]; };
template <class T> __device__ __forceinline__ Vec<T> load(const T* from, long long at) {
    return reinterpret_cast<const Vec<T>*>(from)[at];
}

extern "C" __global__ void __launch_bounds__(THREADS)
adamw_step(const param_t* __restrict__ param, const grad_t* __restrict__ grad, const float* __restrict__ exp_avg,
           const float* __restrict__ exp_avg_sq, new_param_t* __restrict__ new_param, float* __restrict__ new_exp_avg,
           float* __restrict__ new_exp_avg_sq, long long n, double lr, double beta1, double beta2, double eps,
           double weight_decay, int step) {
    __shared__ float rate, root;
    if (threadIdx.x == 0) {
        rate = float(lr / (1.0 - pow(beta1, double(step))));
        root = float(sqrt(1.0 - pow(beta2, double(step))));
    }
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Vec<param_t> in_param[UNROLL];
    Vec<grad_t> in_grad[UNROLL];
    Vec<float> in_exp_avg[UNROLL];
    Vec<float> in_exp_avg_sq[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        in_param[i] = load(param, at);
        in_grad[i] = load(grad, at);
        in_exp_avg[i] = load(exp_avg, at);
        in_exp_avg_sq[i] = load(exp_avg_sq, at);
    }
    __syncthreads();
    const float kept = float(1.0 - lr * weight_decay), old1 = float(beta1), old2 = float(beta2);
    const float new1 = float(1.0 - beta1), new2 = float(1.0 - beta2), least = float(eps);
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        const long long at = first + i * THREADS;
        if (at >= vectors) break;
        Vec<new_param_t> to_new_param;
        Vec<float> to_new_exp_avg;
        Vec<float> to_new_exp_avg_sq;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const float slope = float(in_grad[i].at[e]);
            const float mean = old1 * in_exp_avg[i].at[e] + new1 * slope;
            const float square = old2 * in_exp_avg_sq[i].at[e] + new2 * slope * slope;
            to_new_exp_avg.at[e] = mean;
            to_new_exp_avg_sq.at[e] = square;
            const float move = rate * mean / (sqrtf(square) / root + least);
            to_new_param.at[e] = new_param_t(kept * float(in_param[i].at[e]) - move);
        }
        reinterpret_cast<Vec<new_param_t>*>(new_param)[at] = to_new_param;
        reinterpret_cast<Vec<float>*>(new_exp_avg)[at] = to_new_exp_avg;
        reinterpret_cast<Vec<float>*>(new_exp_avg_sq)[at] = to_new_exp_avg_sq;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) {
        const float slope = float(grad[rest]);
        const float mean = old1 * exp_avg[rest] + new1 * slope;
        const float square = old2 * exp_avg_sq[rest] + new2 * slope * slope;
        new_exp_avg[rest] = mean;
        new_exp_avg_sq[rest] = square;
        const float move = rate * mean / (sqrtf(square) / root + least);
        new_param[rest] = new_param_t(kept * float(param[rest]) - move);
    }
}
