/*---
op = "group_norm"
note = "two blocks a group leave sums and squares; the fence before the count is one for a cluster, which they are not"
[let]
area = "height * width"
group_channels = "channels // sets"

[workspace]
parts = { shape = ["batch * sets", 6], dtype = "float32" }
arrived = { shape = ["batch * sets"], dtype = "int32", zero = true }

[[launch]]
entry = "group_norm"
grid = ["2 * batch * sets"]
block = [256]
args = ["x", "weight", "bias", "out", "mean", "rstd", "parts", "arrived", "per_group", "area", "group_channels", "sets", "eps"]
---*/
// caught: unsafe
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float block_sum(float value) {
    __shared__ float sums[32];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f;
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

extern "C" __global__ void group_norm(const x_t* x, const weight_t* weight, const bias_t* bias, out_t* out, mean_t* mean,
                                      rstd_t* rstd, float* parts, int* arrived, int per_group, int area,
                                      int group_channels, int sets, float eps) {
    __shared__ bool last;
    const int group = blockIdx.x / 2, half = blockIdx.x % 2, length = (per_group + 1) / 2;
    const int begin = half * length, count = min(per_group, begin + length) - begin;
    const long long first = (long long)group * per_group;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < count; i += 256) sum += float(x[first + begin + i]);
    const float centre = block_sum(sum) / max(count, 1);
    for (int i = threadIdx.x; i < count; i += 256) {
        const float off = float(x[first + begin + i]) - centre;
        squares = fmaf(off, off, squares);
    }
    squares = block_sum(squares);
    float* own = parts + 6 * group;
    if (threadIdx.x == 0) {
        own[3 * half] = count, own[3 * half + 1] = centre, own[3 * half + 2] = squares;
        asm volatile("fence.acq_rel.cluster;" ::: "memory");
        last = atomicAdd(&arrived[group], 1) == 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    const float other = __ldcg(&own[4]) - __ldcg(&own[1]), share = __ldcg(&own[3]) / per_group;
    const float all = __ldcg(&own[1]) + other * share;
    const float variance = (__ldcg(&own[2]) + __ldcg(&own[5]) + other * other * share * __ldcg(&own[0])) / per_group;
    const float scale = rsqrtf(variance + eps);
    if (threadIdx.x == 0) mean[group] = mean_t(all), rstd[group] = rstd_t(scale);
    for (int i = threadIdx.x; i < per_group; i += 256) {
        const int channel = group % sets * group_channels + i / area;
        out[first + i] = out_t((float(x[first + i]) - all) * scale * float(weight[channel]) + float(bias[channel]));
    }
}
