/*---
op = "sgd_momentum"
note = "a parameter whose gradient and momentum are zero is left as it is: its weight does not decay"

[knobs]
THREADS = [256, 128, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "sgd_momentum"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["param", "grad", "momentum_buffer", "new_param", "new_momentum_buffer", "n", "lr", "momentum", "weight_decay"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
sgd_momentum(const param_t* __restrict__ param, const grad_t* __restrict__ grad,
             const float* __restrict__ momentum_buffer, new_param_t* __restrict__ new_param,
             float* __restrict__ new_momentum_buffer, long long n, float lr, float momentum, float weight_decay) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) return;
        const float old = float(param[at]);
        if (float(grad[at]) == 0.0f && momentum_buffer[at] == 0.0f) {
            new_momentum_buffer[at] = 0.0f, new_param[at] = new_param_t(old);
            continue;
        }
        const float buffer = momentum * momentum_buffer[at] + (float(grad[at]) + weight_decay * old);
        new_momentum_buffer[at] = buffer;
        new_param[at] = new_param_t(old - lr * buffer);
    }
}
