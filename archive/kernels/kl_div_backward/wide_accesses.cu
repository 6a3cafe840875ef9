/*---
op = "kl_div_backward"
note = "16-byte accesses at any size, all of a thread's loads before their first use; what is left at the end by single elements"

[knobs]
THREADS = [256, 128, 512]
LOADS = [4, 2, 8]

[let]
total = "rows * cols"

[[launch]]
entry = "gradient"
grid = ["ceil_div(ceil_div(total * itemsize(target), 16), THREADS * LOADS)"]
block = ["THREADS"]
args = ["grad_loss", "target", "grad_log_probs", "rows", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(target_t);
struct alignas(16) Vec { target_t at[VEC]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ float of(float target, float scale) { return target * scale; }

extern "C" __global__ void __launch_bounds__(THREADS)
gradient(const float* __restrict__ grad_loss, const target_t* __restrict__ target,
         grad_log_probs_t* __restrict__ grad_log_probs, int rows, long long total) {
    const long long vectors = total / VEC, first = (long long)blockIdx.x * (THREADS * LOADS) + threadIdx.x;
    Vec b[LOADS];
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
        if (first + l * THREADS >= vectors) continue;
        b[l] = reinterpret_cast<const Vec*>(target)[first + l * THREADS];
    }
    const float scale = -*grad_loss / rows;
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
        if (first + l * THREADS >= vectors) continue;
        Vec result;
#pragma unroll
        for (int e = 0; e < VEC; e += 2) {
            put(&result.at[e], of(float(b[l].at[e]), scale), of(float(b[l].at[e + 1]), scale));
        }
        reinterpret_cast<Vec*>(grad_log_probs)[first + l * THREADS] = result;
    }
    const long long at = vectors * VEC + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && at < total) grad_log_probs[at] = grad_log_probs_t(of(float(target[at]), scale));
}
