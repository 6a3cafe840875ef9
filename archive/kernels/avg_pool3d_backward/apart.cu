/*---
op = "avg_pool3d_backward"
note = "windows side by side that fill the volume: a thread reads the gradients of the windows that 16 bytes of a row cross, once, and stores these 16 bytes in all rows and layers of the windows; neighbours store side by side"
when = "kernel == stride and padding == 0 and d % stride == 0 and h % stride == 0 and w * itemsize(grad_x) % 16 == 0 and w % stride == 0 and 16 // itemsize(grad_x) % stride == 0 and d * h * w < 1073741824"
specialize = ["stride", "h", "w", "od", "oh", "ow", "wide"]

[knobs]
ITEMS = [2, 1, 4]
THREADS = [256, 128, 512]

[let]
need = "16 // itemsize(grad_x) // stride"
wide = "min(need, 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8)))"
total = "n * c * od * oh * (w * itemsize(grad_x) // 16)"

[[launch]]
entry = "spread"
grid = ["ceil_div(total, THREADS * ITEMS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(grad_x_t), PACKS = w / VEC, NEED = VEC / stride;  // NEED windows under a pack
constexpr int LOADS = NEED / wide, BOX = stride * stride * stride;
struct alignas(16) Vec { grad_x_t at[VEC]; };
struct alignas(sizeof(grad_out_t) * wide) Near { grad_out_t at[wide]; };

extern "C" __global__ void __launch_bounds__(THREADS)
spread(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total) {
    const long long first = (long long)blockIdx.x * (THREADS * ITEMS), lines = first / PACKS;
    const unsigned begin = unsigned(first - lines * PACKS);  // of the block, in the row of windows it begins in
    const grad_out_t* const from = grad_out + lines * ow;
    const long long layers = lines / oh;
    const unsigned above = unsigned(lines - layers * oh);
    Near near[ITEMS][LOADS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned at = begin + i * THREADS + threadIdx.x;
        if (first + i * THREADS + threadIdx.x >= total) continue;
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            near[i][l] = *reinterpret_cast<const Near*>(from + at / PACKS * ow + at % PACKS * NEED + l * wide);
        }
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned at = begin + i * THREADS + threadIdx.x, line = above + at / PACKS;
        if (first + i * THREADS + threadIdx.x >= total) continue;
        Vec result;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const float grad = float(near[i][e / stride / wide].at[e / stride % wide]);
            // The product with a power of two is exact where the quotient is.
            result.at[e] = grad_x_t((BOX & (BOX - 1)) == 0 ? grad * (1.0f / BOX) : grad / BOX);
        }
        // Layers of windows follow one another without regard to volumes.
        const long long row = (layers + line / oh) * (stride * h) + line % oh * stride;
        Vec* const to = reinterpret_cast<Vec*>(grad_x + row * w) + at % PACKS;
#pragma unroll
        for (int z = 0; z < stride; ++z) {
#pragma unroll
            for (int y = 0; y < stride; ++y) to[(z * h + y) * PACKS] = result;
        }
    }
}
