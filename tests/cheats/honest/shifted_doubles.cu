/*---
op = "group_norm"
note = "one pass in double: sums of the distances from the first value, if that is finite, and of their squares"

[let]
area = "height * width"
group_channels = "channels // sets"

[[launch]]
entry = "group_norm"
grid = ["batch * sets"]
block = [96]
args = ["x", "weight", "bias", "out", "mean", "rstd", "per_group", "area", "group_channels", "sets", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void group_norm(const x_t* x, const weight_t* weight, const bias_t* bias, out_t* out,
                                      mean_t* mean, rstd_t* rstd, int per_group, int area, int group_channels,
                                      int sets, float eps) {
    __shared__ double sums[3], squares[3];
    const long long first = (long long)blockIdx.x * per_group;
    const double shift = isfinite(float(x[first])) ? double(float(x[first])) : 0.0;
    double sum = 0.0, square = 0.0;
    for (int i = threadIdx.x; i < per_group; i += 96) {
        const double off = double(float(x[first + i])) - shift;
        sum += off;
        square += off * off;
    }
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
        square += __shfl_xor_sync(0xffffffffu, square, step);
    }
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum, squares[threadIdx.x / 32] = square;
    __syncthreads();
    const double off = (sums[0] + sums[1] + sums[2]) / per_group;
    double variance = (squares[0] + squares[1] + squares[2]) / per_group - off * off;
    if (variance < 0.0) variance = 0.0;  // keeps NaN
    const double middle = shift + off, scale = 1.0 / sqrt(variance + eps);
    if (threadIdx.x == 0) mean[blockIdx.x] = mean_t(float(middle)), rstd[blockIdx.x] = rstd_t(float(scale));
    for (int i = threadIdx.x; i < per_group; i += 96) {
        const int channel = blockIdx.x % sets * group_channels + i / area;
        const float normed = float((double(float(x[first + i])) - middle) * scale);
        out[first + i] = out_t(normed * float(weight[channel]) + float(bias[channel]));
    }
}
