/*---
op = "avg_pool1d_backward"
note = "a block makes a stretch of grad_x, which begins at 16 bytes wherever rows begin, in shared memory and stores it by 16 bytes; a thread makes the stride's elements that begin with a window from the few windows that reach into them, so that all loops are unrolled and neighbours read side by side"
when = "kernel <= 16 and stride <= 16 and kernel <= 8 * stride and l < 16777216"
specialize = ["kernel", "stride", "padding", "l", "ol", "stretch"]

[knobs]
KILOBYTES = [8, 4, 16]
THREADS = [256, 128, 512]
ITEMS = [4, 2]

[let]
stretch = "KILOBYTES * 1024 // itemsize(grad_x)"
total = "n * c * l"

[[launch]]
entry = "stretches"
grid = ["ceil_div(total, stretch)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(grad_x_t);
// A row as periods, which begin where windows do: in padded places from j * stride on.
constexpr int PERIODS = (l - 1 + padding) / stride + 1, REACH = (kernel + stride - 1) / stride;
struct alignas(16) Vec { grad_x_t at[VEC]; };

// 16-bit results need no digit that the product with a rounded reciprocal lacks. For the others the quotient is put
// right by its remainder, which is NaN for infinite sums and then left out.
__device__ __forceinline__ grad_x_t mean_of(float sum) {
    const float quotient = sum * (1.0f / kernel);
    if constexpr (sizeof(grad_x_t) == 2 || (kernel & (kernel - 1)) == 0) return grad_x_t(quotient);
    const float rest = fmaf(-quotient, float(kernel), sum);
    return grad_x_t(rest == rest ? fmaf(rest, 1.0f / kernel, quotient) : quotient);
}

extern "C" __global__ void __launch_bounds__(THREADS)
stretches(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total) {
    __shared__ Vec packs[stretch / VEC];
    grad_x_t* const made = reinterpret_cast<grad_x_t*>(packs);
    const long long first = (long long)blockIdx.x * stretch, row = first / l;
    const int lead = int(first - row * l), own = int(min((long long)stretch, total - first));  // elements
    const grad_out_t* const from = grad_out + row * ol;
    // Periods counted from the beginning of the row in which the stretch begins.
    const int begin = (lead + padding) / stride;
    const int end = (lead + own - 1) / l * PERIODS + ((lead + own - 1) % l + padding) / stride + 1;
    for (int base = begin + threadIdx.x; base < end; base += THREADS * ITEMS) {
        grad_out_t grads[ITEMS][REACH];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const unsigned period = base + i * THREADS, below = period / PERIODS;
            const int j = period < end ? period % PERIODS : -1;
            const grad_out_t* const last = from + (int(below * ol) + j);
#pragma unroll
            for (int t = 0; t < REACH; ++t) grads[i][t] = unsigned(j - t) < ol ? last[-t] : grad_out_t(0.0f);
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const unsigned period = base + i * THREADS, below = period / PERIODS;
            if (period >= end) continue;
            const int x = period % PERIODS * stride - padding, at = int(below * l) - lead + x;
            grad_x_t means[stride];
#pragma unroll
            for (int r = 0; r < stride; ++r) {
                float sum = 0.0f;
#pragma unroll
                for (int t = 0; t < REACH; ++t) {
                    if (r + t * stride < kernel) sum += float(grads[i][t]);
                }
                means[r] = mean_of(sum);
            }
            if (x >= 0 && x + stride <= l && at >= 0 && at + stride <= own) {
#pragma unroll
                for (int r = 0; r < stride; ++r) made[at + r] = means[r];
            } else {
#pragma unroll
                for (int r = 0; r < stride; ++r) {
                    if (x + r >= 0 && x + r < l && at + r >= 0 && at + r < own) made[at + r] = means[r];
                }
            }
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < own / VEC; at += THREADS) {
        reinterpret_cast<Vec*>(grad_x + first)[at] = packs[at];
    }
    for (int at = own / VEC * VEC + threadIdx.x; at < own; at += THREADS) grad_x[first + at] = made[at];
}
