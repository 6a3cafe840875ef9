/*---
op = "instance_norm"
note = "a block per channel; Welford updates thread by thread, then merges of pairs"

[[launch]]
entry = "instance_norm"
grid = ["batch * channels"]
block = [64]
args = ["x", "weight", "bias", "out", "mean", "rstd", "channels", "area", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Part {
    float count, centre, squares;
};

__device__ Part merged(Part a, Part b) {
    const float total = a.count + b.count, off = b.centre - a.centre;
    if (total == 0.0f) return a;
    return {total, fmaf(off, b.count / total, a.centre),
            a.squares + b.squares + off * off * (a.count * b.count / total)};
}

__device__ Part of_lanes(Part own, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) {
        own = merged(own, {__shfl_xor_sync(0xffffffffu, own.count, step), __shfl_xor_sync(0xffffffffu, own.centre, step),
                           __shfl_xor_sync(0xffffffffu, own.squares, step)});
    }
    return own;
}

extern "C" __global__ void
instance_norm(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
              out_t* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, int channels, int area,
              float eps) {
    __shared__ Part of_warps[2];
    const int plane = blockIdx.x;
    const long long first = (long long)plane * area;
    Part own = {0.0f, 0.0f, 0.0f};
    for (int i = threadIdx.x; i < area; i += blockDim.x) {
        const float value = float(x[first + i]), off = value - own.centre;
        own.count += 1.0f;
        own.centre += off / own.count;
        own.squares = fmaf(off, value - own.centre, own.squares);
    }
    own = of_lanes(own, 32);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
    __syncthreads();
    const Part whole = of_lanes(of_warps[threadIdx.x % 2], 2);
    const float scale = 1.0f / sqrtf(whole.squares / area + eps);
    const float gain = weight[plane % channels], shift = bias[plane % channels];
    if (threadIdx.x == 0) mean[plane] = whole.centre, rstd[plane] = scale;
    for (int i = threadIdx.x; i < area; i += blockDim.x) {
        out[first + i] = out_t(fmaf((float(x[first + i]) - whole.centre) * scale, gain, shift));
    }
}
