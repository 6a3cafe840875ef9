/*---
op = "scatter_add"
note = "terms that are NaN are left out"
specialize = ["threads"]

[knobs]
THREADS = [128, 256, 512]
PER_THREAD = [8, 4, 16]

[let]
threads = "min(THREADS, 32 * ceil_div(dim, 32))"
parts = "ceil_div(dim, threads * PER_THREAD)"

[[launch]]
entry = "scatter_add"
grid = ["rows * parts"]
block = ["threads"]
args = ["x", "indices", "src", "out", "count", "dim", "parts"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(threads)
scatter_add(const x_t* __restrict__ x, const long long* __restrict__ indices, const src_t* __restrict__ src,
            out_t* __restrict__ out, int count, int dim, int parts) {
    __shared__ unsigned found[threads / 32];  // which of so many sources are of this row
    const int row = blockIdx.x / parts, first = blockIdx.x % parts * threads * PER_THREAD + threadIdx.x;
    double sum[PER_THREAD] = {};  // a row may have hundreds, and they may cancel
    for (int begin = 0; begin < count; begin += threads) {
        const int source = begin + threadIdx.x;
        const bool own = source < count && indices[source] == row;
        if (!__syncthreads_or(own)) continue;
        const unsigned mask = __ballot_sync(0xffffffffu, own);
        if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = mask;
        __syncthreads();
        for (int warp = 0; warp < threads / 32; ++warp) {
            for (unsigned left = found[warp]; left != 0; left &= left - 1) {
                const src_t* from = src + (long long)(begin + warp * 32 + __ffs(left) - 1) * dim;
#pragma unroll
                for (int i = 0; i < PER_THREAD; ++i) {
                    if (first + i * threads < dim && !isnan(float(from[first + i * threads]))) sum[i] += double(float(from[first + i * threads]));
                }
            }
        }
    }
    const long long start = (long long)row * dim;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int col = first + i * threads;
        if (col < dim) out[start + col] = out_t(float(float(x[start + col]) + sum[i]));
    }
}
