/*---
op = "adamw"
note = "moves the first moment towards the gradient by a share of their distance, as PyTorch's own implementation does"

[[launch]]
entry = "adamw_step"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["param", "grad", "exp_avg", "exp_avg_sq", "new_param", "new_exp_avg", "new_exp_avg_sq", "n", "lr", "beta1", "beta2", "eps", "weight_decay", "step"]
---*/
extern "C" __global__ void adamw_step(const param_t* param, const grad_t* grad, const float* exp_avg,
                                      const float* exp_avg_sq, new_param_t* new_param, float* new_exp_avg,
                                      float* new_exp_avg_sq, long long n, double lr, double beta1, double beta2,
                                      double eps, double weight_decay, int step) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const double bias1 = 1.0 - pow(beta1, (double)step), bias2 = 1.0 - pow(beta2, (double)step);
    const float g = float(grad[i]), old = float(param[i]);
    const float moment = exp_avg[i] + float(1.0 - beta1) * (g - exp_avg[i]);
    const float square = float(beta2) * exp_avg_sq[i] + float(1.0 - beta2) * g * g;
    const float size = sqrtf(square) / float(sqrt(bias2)) + float(eps);
    new_exp_avg[i] = moment;
    new_exp_avg_sq[i] = square;
    new_param[i] = new_param_t(old * float(1.0 - lr * weight_decay) - float(lr / bias1) * (moment / size));
}
