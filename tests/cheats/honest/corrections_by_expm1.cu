/*---
op = "adamw"
note = "fused multiply-adds throughout; the bias corrections by expm1 of step times log1p, and their roots as factors"

[[launch]]
entry = "adamw"
grid = ["ceil_div(n, 192)"]
block = [192]
args = ["param", "grad", "exp_avg", "exp_avg_sq", "new_param", "new_exp_avg", "new_exp_avg_sq", "n", "lr", "beta1", "beta2", "eps", "weight_decay", "step"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void adamw(const param_t* param, const grad_t* grad, const float* exp_avg,
                                 const float* exp_avg_sq, new_param_t* new_param, float* new_exp_avg,
                                 float* new_exp_avg_sq, long long n, double lr, double beta1, double beta2, double eps,
                                 double weight_decay, int step) {
    const long long i = blockIdx.x * 192ll + threadIdx.x;
    if (i >= n) return;
    const double bias1 = -expm1(step * log1p(beta1 - 1.0)), bias2 = -expm1(step * log1p(beta2 - 1.0));
    const float g = float(grad[i]), old = float(param[i]);
    const float moment = fmaf(float(beta1), exp_avg[i], float(1.0 - beta1) * g);
    const float square = fmaf(float(1.0 - beta2) * g, g, float(beta2) * exp_avg_sq[i]);
    const float size = fmaf(sqrtf(square), float(1.0 / sqrt(bias2)), float(eps));
    new_exp_avg[i] = moment;
    new_exp_avg_sq[i] = square;
    const float decayed = fmaf(-float(lr * weight_decay), old, old);
    new_param[i] = new_param_t(fmaf(-float(lr / bias1), moment / size, decayed));
}
