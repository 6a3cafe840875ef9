/*---
op = "causal_conv1d"
note = "each thread makes whole 16-byte runs of outputs; the past it needs is one or a few more 16-byte loads, which its neighbours just brought into the L1 cache; the taps stay in registers"
when = "length * itemsize(x) % 16 == 0 and padding * itemsize(x) <= 64 and width <= 16"
specialize = ["length", "width", "dilation", "padding", "threads", "groups", "past", "chunks"]
require = ["groups * threads <= 1024", "(past + 1) * UNROLL <= 16"]

[knobs]
THREADS = [128, 64, 256, 512]
UNROLL = [4, 1, 2, 8]
STRIDED = [1, 0]

[let]
vec = "16 // itemsize(x)"
past = "ceil_div(padding, vec)"
threads = "min(THREADS, 32 * ceil_div(length, 32 * vec * UNROLL))"
groups = "max(1, THREADS // threads)"
chunks = "ceil_div(length, vec * UNROLL * threads)"

[[launch]]
entry = "causal_conv1d"
grid = ["chunks * ceil_div(batch * channels, groups)"]
block = ["threads * groups"]
args = ["x", "weight", "bias", "out", "batch * channels", "channels"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), NOW = past * VEC;
struct alignas(16) Vec { x_t at[VEC]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

extern "C" __global__ void __launch_bounds__(threads * groups)
causal_conv1d(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
              out_t* __restrict__ out, int rows, int channels) {
    const int thread = threadIdx.x % threads;
    const int row = blockIdx.x / chunks * groups + threadIdx.x / threads;
    if (row >= rows) return;
    const int channel = row % channels, begin = blockIdx.x % chunks * threads * UNROLL;
    const Vec* from = reinterpret_cast<const Vec*>(x + (long long)row * length);
    Vec* to = reinterpret_cast<Vec*>(out + (long long)row * length);
    // A thread's vectors: side by side, or a whole block apart.
    constexpr int STEP = STRIDED ? threads : 1;
    const int start = begin + (STRIDED ? thread : thread * UNROLL);
    Vec seen[UNROLL][past + 1];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
        for (int b = 0; b <= past; ++b) {
            const int at = start + u * STEP - past + b;
            if (at >= 0 && at < length / VEC) seen[u][b] = from[at];
            else seen[u][b] = Vec{};
        }
    }
    float tap[width];
#pragma unroll
    for (int j = 0; j < width; ++j) tap[j] = float(weight[(long long)channel * width + j]);
    const float base = float(bias[channel]);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        float y[VEC];
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            y[e] = base;
#pragma unroll
            for (int j = 0; j < width; ++j) {
                const int at = NOW + e - padding + j * dilation;
                y[e] = fmaf(tap[j], float(seen[u][at / VEC].at[at % VEC]), y[e]);
            }
        }
        Vec result;
#pragma unroll
        for (int e = 0; e < VEC; e += 2) put(&result.at[e], y[e], y[e + 1]);
        const int at = start + u * STEP;
        if (at < length / VEC) to[at] = result;
    }
}
