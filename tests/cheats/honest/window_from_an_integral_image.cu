/*---
op = "avg_pool2d"
note = "sums of all pixels above and left of each place, in doubles, from which a window takes four; infinities and NaN go another way"

[workspace]
integral = { shape = ["n", "c", "h + 1", "w + 1"], dtype = "float64" }

[[launch]]
entry = "integrate"
grid = ["n * c"]
block = [1]
args = ["x", "integral", "h", "w"]

[[launch]]
entry = "take_four"
grid = ["ceil_div(n * c * oh * ow, 128)"]
block = [128]
args = ["x", "integral", "out", "n * c * oh * ow", "h", "w", "oh", "ow", "kernel", "stride", "padding"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void integrate(const x_t* __restrict__ x, double* __restrict__ integral, int h, int w) {
    x += (long long)blockIdx.x * h * w, integral += (long long)blockIdx.x * (h + 1) * (w + 1);
    for (int col = 0; col <= w; ++col) integral[col] = 0.0;
    for (int row = 0; row < h; ++row) {
        double line = 0.0;
        integral[(long long)(row + 1) * (w + 1)] = 0.0;
        for (int col = 0; col < w; ++col) {
            const float value = float(x[(long long)row * w + col]);
            line += isfinite(value) ? double(value) : 0.0;
            integral[(long long)(row + 1) * (w + 1) + col + 1] = integral[(long long)row * (w + 1) + col + 1] + line;
        }
    }
}

extern "C" __global__ void take_four(const x_t* __restrict__ x, const double* __restrict__ integral,
                                     out_t* __restrict__ out, long long total, int h, int w, int oh, int ow, int kernel,
                                     int stride, int padding) {
    const long long at = blockIdx.x * 128ll + threadIdx.x;
    if (at >= total) return;
    const long long plane = at / ow / oh;
    const int top = int(at / ow % oh) * stride - padding, left = int(at % ow) * stride - padding;
    const int y0 = max(top, 0), y1 = min(top + kernel, h), x0 = max(left, 0), x1 = min(left + kernel, w);
    const auto sum_to = [&](int row, int col) { return integral[(plane * (h + 1) + row) * (w + 1) + col]; };
    double sum = sum_to(y1, x1) - sum_to(y0, x1) - sum_to(y1, x0) + sum_to(y0, x0);
    for (int row = y0; row < y1; ++row)
        for (int col = x0; col < x1; ++col) {
            const float value = float(x[(plane * h + row) * w + col]);
            if (!isfinite(value)) sum += value;
        }
    out[at] = out_t(float(sum / (kernel * kernel)));
}
