/*---
op = "cumprod_backward"
note = "rows of any length that fit into shared memory: read and written side by side, from the end, in between each thread scans an odd number of neighbours, so that no two meet at a bank"
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
shared = "4 * THREADS * items"
args = ["grad_out", "x", "out", "grad_x", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;

// Sums up to and including each lane's own.
__device__ __forceinline__ float scanned(float value, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

// What a zero at `zero`, the first of its row, gets: the products without it, up to the next zero. Behind it all is zero.
__device__ void correct_from(int zero, const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x,
                             const out_t* __restrict__ out, grad_x_t* __restrict__ grad_x, int cols) {
    for (int col = zero + 1 + threadIdx.x; col < cols; col += THREADS) grad_x[col] = grad_x_t(0.0f);
    if (threadIdx.x > 0) return;
    double product = 1.0, sum = double(float(grad_out[zero]));
    for (int col = zero + 1; col < cols && float(x[col]) != 0.0f; ++col) {
        product *= float(x[col]);
        sum += double(float(grad_out[col])) * product;
    }
    grad_x[zero] = grad_x_t(float(sum * (zero > 0 ? float(out[zero - 1]) : 1.0f)));
}

// By a reciprocal where `by` allows: a division is slow where the value is zero, as most are once products underflow.
__device__ __forceinline__ float quotient(float value, float by) {
    if (!(fabsf(by) > 1e-30f && fabsf(by) < 1e30f)) return value / by;
    const float reciprocal = __fdividef(1.0f, by), near = value * reciprocal;
    if constexpr (sizeof(x_t) == 2) return near;
    const float better = fmaf(fmaf(-near, by, value), reciprocal, near);
    return fabsf(near) < INFINITY ? better : near;  // what an infinite quotient leaves is NaN
}

extern "C" __global__ void __launch_bounds__(THREADS)
scan_row(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const out_t* __restrict__ out,
          grad_x_t* __restrict__ grad_x, int cols) {
    extern __shared__ float row[];
    __shared__ float ends[32];
    __shared__ int zero;  // the first of the row, or `cols`
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long first = (long long)blockIdx.x * cols;
    if (threadIdx.x == 0) zero = cols;
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const int at = i * THREADS + threadIdx.x;
        row[at] = at < cols ? float(grad_out[first + cols - 1 - at]) * float(out[first + cols - 1 - at]) : 0.0f;
    }
    __syncthreads();
    float* own = row + threadIdx.x * items;
    float part = 0.0f;
#pragma unroll
    for (int i = 0; i < items; ++i) part += own[i];
    const float upto = scanned(part, lane);
    if (lane == 31) ends[warp] = upto;
    __syncthreads();
    const float of_warps = scanned(lane < WARPS ? ends[lane] : 0.0f, lane);
    const float of_earlier_warps = __shfl_sync(0xffffffffu, of_warps, warp > 0 ? warp - 1 : 0);
    const float in_warp = __shfl_up_sync(0xffffffffu, upto, 1);
    float all = (warp > 0 ? of_earlier_warps : 0.0f) + (lane > 0 ? in_warp : 0.0f);
#pragma unroll
    for (int i = 0; i < items; ++i) own[i] = all += own[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const int at = i * THREADS + threadIdx.x;
        if (at >= cols) continue;
        const float factor = float(x[first + cols - 1 - at]);
        grad_x[first + cols - 1 - at] = grad_x_t(quotient(row[at], factor));
        if (factor == 0.0f) atomicMin(&zero, cols - 1 - at);
    }
    __syncthreads();
    if (zero < cols) correct_from(zero, grad_out + first, x + first, out + first, grad_x + first, cols);
}
