/*---
op = "cumprod"
note = "rows of any length that fit into shared memory: read and written side by side, in between each thread scans an odd number of neighbours, so that no two meet at a bank"
when = "cols <= 8192"
specialize = ["items"]

[knobs]
THREADS = [256, 128, 512]

[let]
each = "ceil_div(cols, THREADS)"
items = "each + 1 - each % 2"

[[launch]]
entry = "scan_row"
grid = ["rows"]
block = ["THREADS"]
shared = "8 * THREADS * items"
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;

// Products up to and including each lane's own.
__device__ __forceinline__ double scanned(double value, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value *= other;
    }
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
scan_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    extern __shared__ double row[];
    __shared__ double ends[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long first = (long long)blockIdx.x * cols;
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const int at = i * THREADS + threadIdx.x;
        row[at] = at < cols ? double(float(x[first + at])) : 1.0;
    }
    __syncthreads();
    double* own = row + threadIdx.x * items;
    double part = 1.0;
#pragma unroll
    for (int i = 0; i < items; ++i) part *= own[i];
    const double upto = scanned(part, lane);
    if (lane == 31) ends[warp] = upto;
    __syncthreads();
    const double of_warps = scanned(lane < WARPS ? ends[lane] : 1.0, lane);
    const double of_earlier_warps = __shfl_sync(0xffffffffu, of_warps, warp > 0 ? warp - 1 : 0);
    const double in_warp = __shfl_up_sync(0xffffffffu, upto, 1);
    double all = (warp > 0 ? of_earlier_warps : 1.0) * (lane > 0 ? in_warp : 1.0);
#pragma unroll
    for (int i = 0; i < items; ++i) own[i] = all *= own[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const int at = i * THREADS + threadIdx.x;
        if (at < cols) out[first + at] = out_t(float(row[at]));
    }
}
