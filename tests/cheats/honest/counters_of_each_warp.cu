/*---
op = "histogram"
note = "every warp has counters of its own in dynamic shared memory, which are added up at the end of the block"

[[launch]]
entry = "clear"
grid = ["ceil_div(bins, 256)"]
block = [256]
args = ["out", "bins"]

[[launch]]
entry = "count"
grid = ["ceil_div(n, 4096)"]
block = [128]
shared = "16 * bins"
args = ["x", "out", "n", "bins"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void clear(long long* out, int bins) {
    const int bin = blockIdx.x * 256 + threadIdx.x;
    if (bin < bins) out[bin] = 0;
}

extern "C" __global__ void count(const x_t* __restrict__ x, long long* __restrict__ out, long long n, int bins) {
    extern __shared__ unsigned counts[];
    for (int i = threadIdx.x; i < 4 * bins; i += 128) counts[i] = 0;
    __syncthreads();
    unsigned* own = counts + threadIdx.x / 32 * bins;
    for (long long at = blockIdx.x * 4096ll + threadIdx.x; at < min(n, (blockIdx.x + 1) * 4096ll); at += 128) {
        const float value = float(x[at]);
        if (value >= 0.0f && value <= 1.0f) atomicAdd(&own[min(int(value * bins), bins - 1)], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += 128) {
        unsigned long long sum = 0;
        for (int warp = 0; warp < 4; ++warp) sum += counts[warp * bins + bin];
        if (sum) atomicAdd(reinterpret_cast<unsigned long long*>(out) + bin, sum);
    }
}
