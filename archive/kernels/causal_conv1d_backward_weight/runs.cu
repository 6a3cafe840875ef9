/*---
op = "causal_conv1d_backward_weight"
note = "a block per channel, through all images; a thread reads runs of gradients and of x by the widest loads, several in flight, the past that it needs too, and keeps the sums of all taps in registers"
when = "padding <= 64 and width <= 16"
specialize = ["length", "width", "dilation", "padding", "vec", "beside", "packs"]

[knobs]
THREADS = [256, 128, 512]
LOADS = [4, 1, 2, 8]

[let]
full = "16 // itemsize(grad_out)"
vec = "min(full, 1 + (1 - min(1, length % 2)) + 2 * (1 - min(1, length % 4)) + 4 * (1 - min(1, length % 8)))"
beside = "ceil_div(padding, vec)"
packs = "length // vec"

[[launch]]
entry = "sum_channel"
grid = ["channels"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_weight", "grad_bias", "batch", "channels"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

constexpr int WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
sum_channel(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_weight_t* __restrict__ grad_weight,
            grad_bias_t* __restrict__ grad_bias, int batch, int channels) {
    __shared__ float sums[width + 1][WARPS];
    const int channel = blockIdx.x;
    float sum[width + 1] = {};
    const long long all = (long long)batch * packs;
    for (long long begin = threadIdx.x; begin < all; begin += THREADS * LOADS) {
        Pack<grad_out_t> grad[LOADS];
        Pack<x_t> seen[LOADS][beside + 1];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const long long at = begin + l * THREADS, image = at / packs;
            const int place = int(at % packs);
            const long long from = (image * channels + channel) * packs + place;
            if (at < all) grad[l] = reinterpret_cast<const Pack<grad_out_t>*>(grad_out)[from];
            else grad[l] = Pack<grad_out_t>{};
#pragma unroll
            for (int b = 0; b <= beside; ++b) {
                if (at < all && place >= b) seen[l][b] = reinterpret_cast<const Pack<x_t>*>(x)[from - b];
                else seen[l][b] = Pack<x_t>{};
            }
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const long long at = begin + l * THREADS;
            if (at >= all) continue;
            const int time = int(at % packs) * vec;
            float some[width + 1] = {};  // sums of sums are more exact
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float one = float(grad[l].at[e]);
                some[width] += one;
#pragma unroll
                for (int tap = 0; tap < width; ++tap) {
                    const int back = (width - 1 - tap) * dilation, b = (back - e + vec - 1) / vec;  // packs before
                    const int pack = back > e ? b : 0;
                    const float value = float(seen[l][pack].at[e - back + pack * vec]);
                    some[tap] = fmaf(one, back <= time + e ? value : 0.0f, some[tap]);
                }
            }
#pragma unroll
            for (int tap = 0; tap <= width; ++tap) sum[tap] += some[tap];
        }
    }
#pragma unroll
    for (int tap = 0; tap <= width; ++tap) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum[tap] += __shfl_xor_sync(0xffffffffu, sum[tap], step);
        if (threadIdx.x % 32 == 0) sums[tap][threadIdx.x / 32] = sum[tap];
    }
    __syncthreads();
    for (int tap = threadIdx.x; tap <= width; tap += THREADS) {
        float all_warps = 0.0f;
        for (int warp = 0; warp < WARPS; ++warp) all_warps += sums[tap][warp];
        if (tap < width) grad_weight[(long long)channel * width + tap] = grad_weight_t(all_warps);
        else grad_bias[channel] = grad_bias_t(all_warps);
    }
}
