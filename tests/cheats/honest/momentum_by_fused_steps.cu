/*---
op = "sgd_momentum"
note = "buffer and parameter by fused multiply-adds, the gradient with its decay first"

[[launch]]
entry = "sgd"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["param", "grad", "momentum_buffer", "new_param", "new_momentum_buffer", "n", "lr", "momentum", "weight_decay"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void sgd(const param_t* __restrict__ param, const grad_t* __restrict__ grad,
                               const float* __restrict__ momentum_buffer, new_param_t* __restrict__ new_param,
                               float* __restrict__ new_momentum_buffer, long long n, float lr, float momentum,
                               float weight_decay) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= n) return;
    const float old = float(param[at]);
    const float buffer = fmaf(momentum, momentum_buffer[at], fmaf(weight_decay, old, float(grad[at])));
    new_momentum_buffer[at] = buffer;
    new_param[at] = new_param_t(fmaf(-lr, buffer, old));
}
