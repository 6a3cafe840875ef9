/*---
op = "group_norm"
note = "sum and sum of squares in double precision in one pass, with which their difference is exact enough"

[let]
area = "height * width"
group_channels = "channels // sets"

[[launch]]
entry = "group_norm_group"
grid = ["batch * sets"]
block = [256]
args = ["x", "weight", "bias", "out", "mean", "rstd", "area * group_channels", "area", "group_channels", "sets", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> __device__ T sum_of_block(T sum) {
    __shared__ T sums[32];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += sums[warp];
    return sum;
}

extern "C" __global__ void group_norm_group(const x_t* __restrict__ x, const weight_t* __restrict__ weight,
                                            const bias_t* __restrict__ bias, out_t* __restrict__ out, mean_t* mean,
                                            rstd_t* rstd, int size, int area, int group_channels, int sets, float eps) {
    x += (long long)blockIdx.x * size, out += (long long)blockIdx.x * size;
    double sum = 0.0, squares = 0.0;
    for (int i = threadIdx.x; i < size; i += 256) {
        const double value = float(x[i]);
        sum += value, squares += value * value;
    }
    const double centre = sum_of_block(sum) / size, variance = sum_of_block(squares) / size - centre * centre;
    const double scale = 1.0 / sqrt((variance < 0.0 ? 0.0 : variance) + eps);
    if (threadIdx.x == 0) mean[blockIdx.x] = mean_t(float(centre)), rstd[blockIdx.x] = rstd_t(float(scale));
    for (int i = threadIdx.x; i < size; i += 256) {
        const int channel = blockIdx.x % sets * group_channels + i / area;
        out[i] = out_t(float((float(x[i]) - centre) * scale) * float(weight[channel]) + float(bias[channel]));
    }
}
