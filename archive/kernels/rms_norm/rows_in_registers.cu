/*---
op = "rms_norm"
note = "a group of threads per row, a warp for short rows and a block for long ones; 16-byte loads, the row stays in registers, the weight is read while the row is on its way and serves all rows of the group"
when = "cols * itemsize(x) % 16 == 0 and cols <= 32768"
specialize = ["cols", "threads", "groups", "vectors", "together"]
require = ["vectors * vec * together * threads * groups <= 32768", "vectors * vec * together <= 64", "threads * groups <= 1024"]

[knobs]
ROW_LOADS = [2, 1, 4, 8]
BLOCK = [128, 256, 512]
LOADS = [4, 1, 2, 8]
WEIGHT_EARLY = [1, 0]

[let]
vec = "16 // itemsize(x)"
threads = "min(1024, 32 * ceil_div(cols, 32 * vec * ROW_LOADS))"
groups = "max(1, BLOCK // threads)"
vectors = "ceil_div(cols, threads * vec)"
together = "max(1, LOADS // vectors)"

[[launch]]
entry = "rms_norm_rows"
grid = ["ceil_div(rows, groups * together)"]
block = ["threads * groups"]
args = ["x", "weight", "out", "rows", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32;
struct alignas(16) Vec { x_t at[VEC]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ float sum_of_warp(float sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ __forceinline__ void read_row(Vec (&to)[vectors], const x_t* row, int thread, bool inside) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
        const int at = i * threads + thread;
        if (inside && at < cols / VEC) to[i] = reinterpret_cast<const Vec*>(row)[at];
        else to[i] = Vec{};
    }
}

extern "C" __global__ void __launch_bounds__(threads * groups, 1)
rms_norm_rows(const x_t* __restrict__ x, const weight_t* __restrict__ weight, out_t* __restrict__ out, int rows,
              float eps) {
    const int thread = threadIdx.x % threads, group = threadIdx.x / threads;
    const int first = (blockIdx.x * groups + group) * together;
    Vec value[together][vectors], gain[vectors];
#pragma unroll
    for (int r = 0; r < together; ++r) read_row(value[r], x + (long long)(first + r) * cols, thread, first + r < rows);
#if WEIGHT_EARLY
    read_row(gain, weight, thread, true);
#endif
    float sum[together];
#pragma unroll
    for (int r = 0; r < together; ++r) {
        sum[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                const float v = float(value[r][i].at[e]);
                sum[r] = fmaf(v, v, sum[r]);
            }
        }
        sum[r] = sum_of_warp(sum[r]);
    }
    if constexpr (WARPS > 1) {
        __shared__ float sums[groups][together][WARPS];
        const int lane = threadIdx.x % 32, warp = thread / 32;
#pragma unroll
        for (int r = 0; r < together; ++r) {
            if (lane == 0) sums[group][r][warp] = sum[r];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < together; ++r) sum[r] = sum_of_warp(lane < WARPS ? sums[group][r][lane] : 0.0f);
    }
#if !WEIGHT_EARLY
    read_row(gain, weight, thread, true);
#endif
#pragma unroll
    for (int r = 0; r < together; ++r) {
        const float scale = rsqrtf(sum[r] * (1.0f / cols) + eps);
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
            const int at = i * threads + thread;
            Vec y;
#pragma unroll
            for (int e = 0; e < VEC; e += 2) {
                put(&y.at[e], float(value[r][i].at[e]) * scale * float(gain[i].at[e]),
                    float(value[r][i].at[e + 1]) * scale * float(gain[i].at[e + 1]));
            }
            if (first + r < rows && at < cols / VEC) {
                reinterpret_cast<Vec*>(out + (long long)(first + r) * cols)[at] = y;
            }
        }
    }
}
