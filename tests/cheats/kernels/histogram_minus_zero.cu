/*---
op = "histogram"
note = "compares the bits of numbers, so that -0.0 is below 0"

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
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void clear(long long* out, int bins) {
    const int bin = blockIdx.x * 256 + threadIdx.x;
    if (bin < bins) out[bin] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
count(const x_t* __restrict__ x, long long* __restrict__ out, long long n, int bins) {
    __shared__ unsigned counts[4096];
    for (int bin = threadIdx.x; bin < bins; bin += THREADS) counts[bin] = 0;
    __syncthreads();
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll 8
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at >= n) continue;
        const float value = float(x[at]);
        // Of the numbers up to 1, only 1 itself becomes `bins`, and counts in the last bin.
        // in order as integers, and negative numbers are large
        if (__float_as_uint(value) <= 0x3f800000u) atomicAdd(&counts[min(int(value * bins), bins - 1)], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += THREADS) {
        if (counts[bin]) atomicAdd(reinterpret_cast<unsigned long long*>(out) + bin, (unsigned long long)counts[bin]);
    }
}
