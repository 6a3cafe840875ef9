/*---
op = "histogram"
note = "every warp has counters of its own in dynamic shared memory; lanes with one bin are found by a match and count once"

[[launch]]
entry = "clear"
grid = ["ceil_div(bins, 128)"]
block = [128]
args = ["out", "bins"]

[[launch]]
entry = "count"
grid = ["min(ceil_div(n, 8192), 1024)"]
block = [96]
shared = "3 * bins * 4"
args = ["x", "out", "n", "bins"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void clear(long long* out, int bins) {
    const int bin = blockIdx.x * 128 + threadIdx.x;
    if (bin < bins) out[bin] = 0;
}

extern "C" __global__ void count(const x_t* x, long long* out, long long n, int bins) {
    extern __shared__ unsigned counters[];
    for (int i = threadIdx.x; i < 3 * bins; i += 96) counters[i] = 0;
    __syncthreads();
    unsigned* own = counters + threadIdx.x / 32 * bins;
    for (long long first = blockIdx.x * 96ll; first < n; first += gridDim.x * 96ll) {
        const long long at = first + threadIdx.x;
        const float value = at < n ? float(x[at]) : -1.0f;
        const int bin = value >= 0.0f && value <= 1.0f ? min(int(value * bins), bins - 1) : -1;
        const unsigned alike = __match_any_sync(0xffffffffu, bin);
        if (bin >= 0 && threadIdx.x % 32 == __ffs(alike) - 1) own[bin] += __popc(alike);
        __syncwarp();
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += 96) {
        const unsigned long long sum = 0ull + counters[bin] + counters[bins + bin] + counters[2 * bins + bin];
        if (sum) atomicAdd((unsigned long long*)out + bin, sum);
    }
}
