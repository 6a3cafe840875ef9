/*---
op = "batch_norm_inference"
note = "for images of any size: blocks stay and keep what each channel needs in shared memory, found once, so that no root or quotient is left in the loop; 16-byte accesses through the whole tensor, each of at most two channels, which values choose from without a branch"
when = "height * width >= 16 // itemsize(x) and channels <= 6144"
specialize = ["area", "channels", "total", "per_sm", "blocks"]

[knobs]
THREADS = [512, 256, 1024]
LOADS = [4, 2, 8]
RESIDENT = [1024, 1536, 2048]

[let]
area = "height * width"
total = "batch * channels * area"
per_sm = "max(1, min(RESIDENT // THREADS, 208 * 1024 // (channels * 16 + 1024)))"
blocks = "max(1, min(sms * per_sm, total * itemsize(x) // 16 // (THREADS * LOADS)))"

[[launch]]
entry = "normalise"
grid = ["blocks"]
block = ["THREADS"]
shared = "channels * 16"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), STEP = THREADS * LOADS;
using index = decltype(total + 0);
union Pack {
    uint4 raw;
    x_t at[VEC];
};
extern __shared__ float4 lines[];  // a channel's factor, and what is taken off before and added after

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

extern "C" __global__ void __launch_bounds__(THREADS, per_sm)
normalise(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
          const float* __restrict__ running_mean, const float* __restrict__ running_var, out_t* __restrict__ out, float eps) {
    constexpr index VECTORS = total / VEC;
    const uint4* const from = reinterpret_cast<const uint4*>(x);
    index first = (index)blockIdx.x * STEP + threadIdx.x;
    Pack held[LOADS];
    const auto load = [&] {
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (first + l * THREADS < VECTORS) held[l].raw = from[first + l * THREADS];
        }
    };
    load();
    for (int channel = threadIdx.x; channel < channels; channel += THREADS) {
        lines[channel] = make_float4(weight[channel] / sqrtf(running_var[channel] + eps), running_mean[channel], bias[channel], 0.0f);
    }
    __syncthreads();
#pragma unroll 1
    while (first - (index)threadIdx.x < VECTORS) {
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const index vector = first + l * THREADS;
            if (vector >= VECTORS) continue;
            const index row = vector * VEC / area;
            const int channel = int(row % channels), left = area - int(vector * VEC - row * area);  // values of that channel
            const float4 line = lines[channel], next = lines[channel + 1 < channels ? channel + 1 : 0];
            float result[VEC];
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                const bool own = area % VEC == 0 || e < left;
                result[e] = (float(held[l].at[e]) - (own ? line.y : next.y)) * (own ? line.x : next.x) + (own ? line.z : next.z);
            }
            Pack packed;
#pragma unroll
            for (int e = 0; e < VEC; e += 2) put(&packed.at[e], result[e], result[e + 1]);
            __stcs(reinterpret_cast<uint4*>(out) + vector, packed.raw);
        }
        first += (index)blocks * STEP;
        load();
    }
    const index at = VECTORS * VEC + threadIdx.x;
    if (blockIdx.x == 0 && at < total) {
        const float4 line = lines[int(at / area % channels)];
        out[at] = out_t((float(x[at]) - line.y) * line.x + line.z);
    }
}
