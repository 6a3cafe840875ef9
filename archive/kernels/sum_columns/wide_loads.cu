/*---
op = "sum_columns"
note = "a thread adds up as many neighbouring columns as fill 16 bytes over a stretch of rows, several rows in flight; a block's threads put their sums together in shared memory, and a second launch those of the stretches, always in the same order"
specialize = ["cols", "vec", "height", "chunks"]

[knobs]
DEPTH = [8, 4, 16]
BLOCKS = [4, 2, 8]
LOADS = [8, 4, 16]

[let]
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, cols % 2)) + 2 * (1 - min(1, cols % 4)) + 4 * (1 - min(1, cols % 8)))"
strips = "ceil_div(cols, 32 * vec)"
height = "max(DEPTH, ceil_div(rows * strips, sms * BLOCKS))"
chunks = "ceil_div(rows, height)"

[workspace]
parts = { shape = ["chunks", "cols"], dtype = "float32" }

[[launch]]
entry = "sum_stretch"
grid = ["strips * chunks"]
block = [32, "DEPTH"]
args = ["x", "parts", "rows", "strips"]

[[launch]]
entry = "sum_stretches"
grid = ["ceil_div(cols, 32)"]
block = [32, 32]
args = ["parts", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct alignas(sizeof(x_t) * vec) Pack { x_t at[vec]; };

extern "C" __global__ void __launch_bounds__(32 * DEPTH, 32 * DEPTH * BLOCKS <= 2048 ? BLOCKS : 1)
sum_stretch(const x_t* __restrict__ x, float* __restrict__ parts, int rows, int strips) {
    __shared__ float met[DEPTH][vec][33];
    const int col = (blockIdx.x % strips * 32 + threadIdx.x) * vec, chunk = blockIdx.x / strips;
    const int first = chunk * height, end = min(first + height, rows);
    float sum[vec] = {};
    for (int begin = first + threadIdx.y; begin < end && col < cols; begin += LOADS * DEPTH) {
        Pack held[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int row = begin + i * DEPTH;
            if (row < end) held[i] = *reinterpret_cast<const Pack*>(x + (long long)row * cols + col);
            else held[i] = Pack{};
        }
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            float some = 0.0f;  // sums of sums are more exact
#pragma unroll
            for (int i = 0; i < LOADS; ++i) some += float(held[i].at[e]);
            sum[e] += some;
        }
    }
#pragma unroll
    for (int e = 0; e < vec; ++e) met[threadIdx.y][e][threadIdx.x] = sum[e];
    __syncthreads();
    for (int at = threadIdx.y * 32 + threadIdx.x; at < 32 * vec; at += 32 * DEPTH) {
        const int own = blockIdx.x % strips * 32 * vec + at;
        float total = 0.0f;
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) total += met[d][at % vec][at / vec];
        if (own < cols) parts[(long long)chunk * cols + own] = total;
    }
}

// A warp's width of columns, 32 threads to each.
extern "C" __global__ void __launch_bounds__(1024)
sum_stretches(const float* __restrict__ parts, out_t* __restrict__ out) {
    __shared__ float sums[32][33];
    const int col = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
#pragma unroll 4
#pragma unroll 1
    for (int chunk = threadIdx.y; chunk < chunks && col < cols; chunk += 32) sum += parts[(long long)chunk * cols + col];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = sums[threadIdx.x][threadIdx.y];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const int own = blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && own < cols) out[own] = out_t(sum);
}
