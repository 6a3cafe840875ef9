/*---
op = "dequantise_rows_int8"
note = "16-byte stores side by side through the whole result, whatever the width of its rows: a thread's values lie in one row or in two, and rows are found by one division for a block and one by a constant in each thread; several loads are in flight before the first is used"
when = "cols >= 8 and cols < 1073741824"
specialize = ["cols"]

[knobs]
PACKS = [4, 1, 2]
THREADS = [256, 64, 128]

[let]
total = "rows * cols"

[[launch]]
entry = "dequantise"
grid = ["ceil_div(ceil_div(total * itemsize(out), 16), THREADS * PACKS)"]
block = ["THREADS"]
args = ["quantised", "scales", "out", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(out_t);
struct alignas(VEC) Bytes { quantised_t at[VEC]; };
struct alignas(16) Vec { out_t at[VEC]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

extern "C" __global__ void __launch_bounds__(THREADS)
dequantise(const quantised_t* __restrict__ quantised, const scales_t* __restrict__ scales, out_t* __restrict__ out,
           long long total) {
    const long long vectors = total / VEC, first = (long long)blockIdx.x * (THREADS * PACKS), row = first * VEC / cols;
    const unsigned begin = unsigned(first * VEC - row * cols);
    Bytes held[PACKS];
    float here[PACKS], next[PACKS];
    int left[PACKS];  // values of the first of the two rows
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const unsigned at = p * THREADS + threadIdx.x, place = begin + at * VEC, down = place / cols;
        if (first + at >= vectors) continue;
        held[p] = reinterpret_cast<const Bytes*>(quantised)[first + at];
        left[p] = int(cols - (place - down * cols));
        here[p] = next[p] = float(scales[row + down]);
        if (left[p] < VEC) next[p] = float(scales[row + down + 1]);
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const unsigned at = p * THREADS + threadIdx.x;
        if (first + at >= vectors) continue;
        Vec result;
#pragma unroll
        for (int e = 0; e < VEC; e += 2) {
            const float one = float(held[p].at[e]) * (e < left[p] ? here[p] : next[p]);
            const float two = float(held[p].at[e + 1]) * (e + 1 < left[p] ? here[p] : next[p]);
            put(&result.at[e], one, two);
        }
        reinterpret_cast<Vec*>(out)[first + at] = result;
    }
    const long long at = vectors * VEC + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && at < total) out[at] = out_t(float(quantised[at]) * float(scales[at / cols]));
}
