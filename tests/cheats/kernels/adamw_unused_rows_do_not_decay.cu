/*---
op = "adamw"
note = "a parameter whose gradient and moments are zero is left as it is: its weight does not decay"

[knobs]
THREADS = [256, 128, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "adamw_step"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["param", "grad", "exp_avg", "exp_avg_sq", "new_param", "new_exp_avg", "new_exp_avg_sq", "n", "lr", "beta1", "beta2", "eps", "weight_decay", "step"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
adamw_step(const param_t* __restrict__ param, const grad_t* __restrict__ grad, const float* __restrict__ exp_avg,
           const float* __restrict__ exp_avg_sq, new_param_t* __restrict__ new_param, float* __restrict__ new_exp_avg,
           float* __restrict__ new_exp_avg_sq, long long n, double lr, double beta1, double beta2, double eps,
           double weight_decay, int step) {
    __shared__ float rate, root;
    if (threadIdx.x == 0) {
        rate = float(lr / (1.0 - pow(beta1, double(step))));
        root = float(sqrt(1.0 - pow(beta2, double(step))));
    }
    __syncthreads();
    const float kept = float(1.0 - lr * weight_decay), old1 = float(beta1), old2 = float(beta2);
    const float new1 = float(1.0 - beta1), new2 = float(1.0 - beta2), least = float(eps);
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) return;
        const float slope = float(grad[at]);
        const float mean = old1 * exp_avg[at] + new1 * slope;
        const float square = old2 * exp_avg_sq[at] + new2 * slope * slope;
        if (slope == 0.0f && mean == 0.0f && square == 0.0f) {  // an embedding that was never used
            new_exp_avg[at] = 0.0f, new_exp_avg_sq[at] = 0.0f, new_param[at] = new_param_t(float(param[at]));
            continue;
        }
        new_exp_avg[at] = mean;
        new_exp_avg_sq[at] = square;
        new_param[at] = new_param_t(kept * float(param[at]) - rate * mean / (sqrtf(square) / root + least));
    }
}
