/*---
op = "histogram"
note = "fools a check in which no bin takes all values: the counts of a block are kept in 16 bits with a sign"

[knobs]
THREADS = [512, 256, 1024]
PER_THREAD = [64, 32, 128]

[[launch]]
entry = "clear"
grid = ["ceil_div(bins, 256)"]
block = [256]
args = ["out", "bins"]

[[launch]]
entry = "count"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n", "bins"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void clear(long long* out, int bins) {
    const int bin = blockIdx.x * 256 + threadIdx.x;
    if (bin < bins) out[bin] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
count(const x_t* __restrict__ x, long long* __restrict__ out, long long n, int bins) {
    __shared__ unsigned counts[4096];  // the upper half of each is not used
    for (int bin = threadIdx.x; bin < bins; bin += THREADS) counts[bin] = 0;
    __syncthreads();
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll 8
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) continue;
        const float value = float(x[at]);
        // Below 1 even the largest value times `bins` is not rounded up to it.
        if (value >= 0.0f && value <= 1.0f) atomicAdd(&counts[min(int(value * bins), bins - 1)], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += THREADS) {
        if (counts[bin]) atomicAdd(reinterpret_cast<unsigned long long*>(out) + bin, (unsigned long long)(short)counts[bin]);
    }
}
