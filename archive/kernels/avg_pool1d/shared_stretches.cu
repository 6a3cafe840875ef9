/*---
op = "avg_pool1d"
note = "long windows that overlap: a block brings a stretch of a row into shared memory, side by side, and each thread adds up its neighbouring outputs from values that it reads once; a gap behind each thread's share keeps lanes on different banks; results go back through shared memory, too, and leave side by side"
when = "kernel <= 64 and stride <= 8 and l < 1073741824"
specialize = ["kernel", "stride", "padding", "l", "ol", "share", "threads", "parts", "span"]

[knobs]
PER = [8, 4]
LIMIT = [256, 128]

[let]
chunks = "ceil_div(ol, PER)"
parts = "ceil_div(chunks, LIMIT)"
share = "ceil_div(chunks, parts)"
threads = "ceil_div(share, 32) * 32"
span = "(share * PER - 1) * stride + kernel"

[[launch]]
entry = "pool_stretch"
grid = ["n * c * parts"]
block = ["threads"]
shared = "4 * max(span + span // (PER * stride) + 1, share * (PER + 1))"
args = ["x", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int STEP = PER * stride, NEED = (PER - 1) * stride + kernel;  // values that a thread goes on by, and needs
extern __shared__ float held[];

extern "C" __global__ void __launch_bounds__(threads)
pool_stretch(const x_t* __restrict__ x, out_t* __restrict__ out) {
    const long long row = blockIdx.x / parts;
    const int first = int(blockIdx.x % parts) * (share * PER), begin = first * stride - padding;
    const x_t* const from = x + row * l;
#pragma unroll 8
    for (int i = threadIdx.x; i < span; i += threads) {
        const int col = begin + i;
        held[i + i / STEP] = col >= 0 && col < l ? float(from[col]) : 0.0f;
    }
    __syncthreads();
    float sums[PER] = {};
    if (threadIdx.x < share) {
#pragma unroll
        for (int t = 0; t < NEED; ++t) {
            const float value = held[threadIdx.x * (STEP + 1) + t + t / STEP];
#pragma unroll
            for (int o = 0; o < PER; ++o) {
                if (t >= o * stride && t < o * stride + kernel) sums[o] += value;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x < share) {
#pragma unroll
        for (int o = 0; o < PER; ++o) held[threadIdx.x * (PER + 1) + o] = sums[o];
    }
    __syncthreads();
    const int count = min(share * PER, ol - first);
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += threads) out[row * ol + first + i] = out_t(held[i + i / PER] / kernel);
}
