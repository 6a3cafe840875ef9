/*---
op = "mse_backward"
note = "2 * grad_loss / n is computed once a thread; a persistent grid"

[[launch]]
entry = "mse_backward"
grid = ["min(ceil_div(n, 256), 48)"]
block = [256]
args = ["grad_loss", "x", "target", "grad_x", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
mse_backward(const float* __restrict__ grad_loss, const x_t* __restrict__ x, const target_t* __restrict__ target,
             grad_x_t* __restrict__ grad_x, long long n) {
    const float factor = 2.0f * *grad_loss / float(n);
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        grad_x[at] = grad_x_t((float(x[at]) - float(target[at])) * factor);
    }
}
