/*---
op = "batch_norm_inference"
note = "16-byte accesses through the whole tensor whatever the size of its planes; a thread finds the channel of its first element and goes on from there"
specialize = ["area", "channels"]

[knobs]
THREADS = [256, 128, 512]
LOADS = [4, 2, 8]

[let]
area = "height * width"
total = "batch * channels * area"

[[launch]]
entry = "normalise"
grid = ["ceil_div(ceil_div(total * itemsize(x), 16), THREADS * LOADS)"]
block = ["THREADS"]
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "total", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Vec { x_t at[VEC]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

// A channel's factor, and what is taken off before and added after.
struct Line { float scale, centre, shift; };

extern "C" __global__ void __launch_bounds__(THREADS)
normalise(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
          const float* __restrict__ running_mean, const float* __restrict__ running_var, out_t* __restrict__ out,
          long long total, float eps) {
    const long long vectors = total / VEC, first = (long long)blockIdx.x * (THREADS * LOADS) + threadIdx.x;
    const auto line_of = [=](int channel) {
        return Line{weight[channel] / sqrtf(running_var[channel] + eps), running_mean[channel], bias[channel]};
    };
    Vec held[LOADS];
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
        if (first + l * THREADS < vectors) held[l] = reinterpret_cast<const Vec*>(x)[first + l * THREADS];
    }
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
        const long long at = (first + l * THREADS) * VEC;
        if (first + l * THREADS >= vectors) continue;
        int channel = int(at / area % channels), place = int(at % area);
        Line line = line_of(channel);
        float result[VEC];
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            if constexpr (area % VEC != 0) {
                if (place == area) {
                    place = 0, channel = channel + 1 < channels ? channel + 1 : 0;
                    line = line_of(channel);
                }
                ++place;
            }
            result[e] = (float(held[l].at[e]) - line.centre) * line.scale + line.shift;
        }
        Vec packed;
#pragma unroll
        for (int e = 0; e < VEC; e += 2) put(&packed.at[e], result[e], result[e + 1]);
        reinterpret_cast<Vec*>(out)[first + l * THREADS] = packed;
    }
    const long long at = vectors * VEC + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && at < total) {
        const Line line = line_of(int(at / area % channels));
        out[at] = out_t((float(x[at]) - line.centre) * line.scale + line.shift);
    }
}
