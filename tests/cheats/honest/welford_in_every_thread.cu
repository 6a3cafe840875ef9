/*---
op = "layer_norm"
note = "mean and squares after Welford in each thread, merged in a tree, the means in double precision"

[[launch]]
entry = "layer_norm_row"
grid = ["rows"]
block = [128]
args = ["x", "weight", "bias", "out", "mean", "rstd", "cols", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Moments {
    float count;
    double mean, squares;
};

__device__ Moments merged(Moments a, Moments b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const double share = b.count / count, off = b.mean - a.mean;
    return {count, a.mean + off * share, a.squares + b.squares + off * off * a.count * share};
}

extern "C" __global__ void layer_norm_row(const x_t* __restrict__ x, const weight_t* __restrict__ weight,
                                          const bias_t* __restrict__ bias, out_t* __restrict__ out,
                                          float* __restrict__ mean, float* __restrict__ rstd, int cols, float eps) {
    __shared__ Moments parts[128];
    x += (long long)blockIdx.x * cols, out += (long long)blockIdx.x * cols;
    Moments own = {0.0f, 0.0, 0.0};
    for (int col = threadIdx.x; col < cols; col += 128) {
        const double value = float(x[col]), off = value - own.mean;
        own.count += 1.0f;
        own.mean += off / own.count;
        own.squares += off * (value - own.mean);
    }
    parts[threadIdx.x] = own;
    __syncthreads();
    for (int step = 64; step > 0; step /= 2) {
        if (threadIdx.x < step) parts[threadIdx.x] = merged(parts[threadIdx.x], parts[threadIdx.x + step]);
        __syncthreads();
    }
    const double centre = parts[0].mean;
    const float scale = 1.0f / sqrtf(float(parts[0].squares / cols) + eps);
    if (threadIdx.x == 0) mean[blockIdx.x] = float(centre), rstd[blockIdx.x] = scale;
    for (int col = threadIdx.x; col < cols; col += 128) {
        out[col] = out_t(float(float(x[col]) - centre) * scale * float(weight[col]) + float(bias[col]));
    }
}
