/*---
op = "sgd_momentum"
note = "three fused multiply-adds per parameter, blocks in a grid-stride loop from the end of the parameters to their start"

[[launch]]
entry = "sgd"
grid = ["min(ceil_div(n, 256), 512)"]
block = [256]
args = ["param", "grad", "momentum_buffer", "new_param", "new_momentum_buffer", "n", "lr", "momentum", "weight_decay"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void sgd(const param_t* param, const grad_t* grad, const float* momentum_buffer,
                               new_param_t* new_param, float* new_momentum_buffer, long long n, float lr,
                               float momentum, float weight_decay) {
    for (long long i = n - 1 - (blockIdx.x * 256ll + threadIdx.x); i >= 0; i -= gridDim.x * 256ll) {
        const float old = float(param[i]);
        const float buffer = fmaf(momentum, momentum_buffer[i], fmaf(weight_decay, old, float(grad[i])));
        new_momentum_buffer[i] = buffer;
        new_param[i] = new_param_t(fmaf(-lr, buffer, old));
    }
}
