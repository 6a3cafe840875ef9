/*---
op = "adaptive_avg_pool1d_backward"
note = "16-byte stores through the whole tensor whatever the size of its planes: a thread asks for each of its elements the windows that hold it; sizes are constants, so that no division is left"
specialize = ["l", "ol"]

[knobs]
THREADS = [256, 128, 512]
PACKS = [2, 1, 4]

[let]
total = "n * c * l"

[[launch]]
entry = "spread"
grid = ["ceil_div(ceil_div(total * itemsize(grad_x), 16), THREADS * PACKS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(grad_x_t);
struct alignas(16) Vec { grad_x_t at[VEC]; };

// The window of output o of `count` along an axis of `size`, and the windows that hold a place there.
__device__ __forceinline__ int begin_of(int o, int size, int count) { return int((long long)o * size / count); }
__device__ __forceinline__ int end_of(int o, int size, int count) {
    return int(((long long)(o + 1) * size + count - 1) / count);
}
__device__ __forceinline__ int length_of(int o, int size, int count) {
    return end_of(o, size, count) - begin_of(o, size, count);
}
__device__ __forceinline__ int first_with(int place, int size, int count) { return begin_of(place, count, size); }
__device__ __forceinline__ int last_with(int place, int size, int count) { return end_of(place, count, size) - 1; }

constexpr int D = 1, H = 1, W = l, OD = 1, OH = 1, OW = ol;

__device__ __forceinline__ float gradient(const grad_out_t* __restrict__ plane, int place) {
    const int z = place / (H * W), y = place / W % H, x = place % W;
    float sum = 0.0f;
    for (int i = first_with(z, D, OD); i <= last_with(z, D, OD); ++i) {
        for (int j = first_with(y, H, OH); j <= last_with(y, H, OH); ++j) {
            for (int k = first_with(x, W, OW); k <= last_with(x, W, OW); ++k) {
                const int size = length_of(i, D, OD) * length_of(j, H, OH) * length_of(k, W, OW);
                sum += float(plane[(i * OH + j) * OW + k]) / size;
            }
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
spread(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total) {
    constexpr int ALL = D * H * W, OUT = OD * OH * OW;
    const long long vectors = total / VEC, first = (long long)blockIdx.x * (THREADS * PACKS) + threadIdx.x;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const long long at = (first + p * THREADS) * VEC;
        if (first + p * THREADS >= vectors) continue;
        long long plane = at / ALL;
        int place = int(at % ALL);
        Vec result;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            result.at[e] = grad_x_t(gradient(grad_out + plane * OUT, place));
            if (++place == ALL) place = 0, ++plane;
        }
        reinterpret_cast<Vec*>(grad_x)[first + p * THREADS] = result;
    }
    const long long at = vectors * VEC + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && at < total) {
        grad_x[at] = grad_x_t(gradient(grad_out + at / ALL * OUT, int(at % ALL)));
    }
}
