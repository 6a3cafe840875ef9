/*---
op = "avg_pool1d_backward"
note = "windows side by side that fill the row: element i of grad_x belongs to element i / stride of grad_out, counted through the tensors without regard to rows; 16-byte stores side by side, one load of the windows under each"
when = "kernel == stride and padding == 0 and l % stride == 0 and 16 // itemsize(grad_x) % stride == 0"
specialize = ["stride"]

[knobs]
ITEMS = [4, 2, 8]
THREADS = [256, 128, 512]

[let]
total = "n * c * l"

[[launch]]
entry = "spread"
grid = ["ceil_div(total * itemsize(grad_x), 16 * THREADS * ITEMS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(grad_x_t), NEED = VEC / stride;  // windows under a store
struct alignas(16) Vec { grad_x_t at[VEC]; };
struct alignas(sizeof(grad_out_t) * NEED) Near { grad_out_t at[NEED]; };

__device__ __forceinline__ grad_x_t share(grad_out_t grad) {
    return grad_x_t(float(grad) * (1.0f / stride));  // a power of two: exact
}

extern "C" __global__ void __launch_bounds__(THREADS)
spread(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total) {
    const long long packs = total / VEC, first = (long long)blockIdx.x * (THREADS * ITEMS) + threadIdx.x;
    const Near* const from = reinterpret_cast<const Near*>(grad_out) + first;
    Vec* const to = reinterpret_cast<Vec*>(grad_x) + first;
    Near near[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (first + i * THREADS < packs) near[i] = from[i * THREADS];
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (first + i * THREADS >= packs) continue;
        Vec result;
#pragma unroll
        for (int e = 0; e < VEC; ++e) result.at[e] = share(near[i].at[e / stride]);
        to[i * THREADS] = result;
    }
    const long long at = packs * VEC + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && at < total) grad_x[at] = share(grad_out[at / stride]);
}
