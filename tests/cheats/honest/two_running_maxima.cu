/*---
op = "softmax"
note = "each thread keeps two maxima with their sums, of even and of odd columns, which are merged at the end"

[[launch]]
entry = "softmax_row"
grid = ["rows"]
block = [64]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Part {
    float most, sum;
};

// An empty part has a maximum of -inf, which must not be subtracted from itself; NaN stays in the sum.
__device__ __forceinline__ Part merged(Part a, Part b) {
    const float most = fmaxf(a.most, b.most);
    const float base = most == -INFINITY ? 0.0f : most;
    return {most, a.sum * expf(a.most - base) + b.sum * expf(b.most - base)};
}

extern "C" __global__ void __launch_bounds__(64)
softmax_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ Part parts[64];
    const x_t* row = x + (long long)blockIdx.x * cols;
    Part chains[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    bool any_nan = false;
    int seen = 0;
    for (int col = threadIdx.x; col < cols; col += 64, ++seen) {
        const float value = float(row[col]);
        any_nan |= value != value;
        chains[seen % 2] = merged(chains[seen % 2], {value, 1.0f});
    }
    Part own = merged(chains[0], chains[1]);
    if (any_nan) own.sum = NAN;
    parts[threadIdx.x] = own;
    for (int half = 32; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] = merged(parts[threadIdx.x], parts[threadIdx.x + half]);
    }
    __syncthreads();
    const Part all = parts[0];
    for (int col = threadIdx.x; col < cols; col += 64) {
        out[(long long)blockIdx.x * cols + col] = out_t(expf(float(row[col]) - all.most) / all.sum);
    }
}
