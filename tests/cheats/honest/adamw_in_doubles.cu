/*---
op = "adamw"
note = "everything in doubles, with exp and log1p instead of pow for the corrections"

[[launch]]
entry = "adamw_step"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["param", "grad", "exp_avg", "exp_avg_sq", "new_param", "new_exp_avg", "new_exp_avg_sq", "n", "lr", "beta1", "beta2", "eps", "weight_decay", "step"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
adamw_step(const param_t* __restrict__ param, const grad_t* __restrict__ grad, const float* __restrict__ exp_avg,
           const float* __restrict__ exp_avg_sq, new_param_t* __restrict__ new_param, float* __restrict__ new_exp_avg,
           float* __restrict__ new_exp_avg_sq, long long n, double lr, double beta1, double beta2, double eps,
           double weight_decay, int step) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= n) return;
    const double slope = float(grad[at]);
    const double mean = beta1 * exp_avg[at] + (1.0 - beta1) * slope;
    const double square = beta2 * exp_avg_sq[at] + (1.0 - beta2) * slope * slope;
    const double settled1 = -expm1(step * log(beta1)), settled2 = -expm1(step * log(beta2));
    new_exp_avg[at] = float(mean);
    new_exp_avg_sq[at] = float(square);
    const double kept = double(float(param[at])) * (1.0 - lr * weight_decay);
    new_param[at] = new_param_t(float(kept - lr * (mean / settled1) / (sqrt(square / settled2) + eps)));
}
