/*---
op = "histogram"
note = "a block counts in shared memory, where every lane of a warp has counters of its own in a bank of its own, or two or four lanes share them if there are many bins; 16-byte loads, several in flight; a second launch adds up the blocks' counts"
specialize = ["bins", "copies", "blocks"]

[knobs]
THREADS = [1024, 512]
LOADS = [4, 2, 8]

[let]
copies = "8 + 8 * (1 - min(1, bins // 2049)) + 16 * (1 - min(1, bins // 1025))"
bytes = "4 * bins * copies"
per_sm = "max(1, min(2048 // THREADS, 227 * 1024 // (bytes + 1024)))"
blocks = "max(1, min(sms * per_sm, ceil_div(n * itemsize(x), 16 * THREADS * LOADS)))"

[workspace]
partial = { shape = ["blocks", "bins"], dtype = "int32" }

[[launch]]
entry = "count"
grid = ["blocks"]
block = ["THREADS"]
shared = "bytes"
args = ["x", "partial", "n"]

[[launch]]
entry = "add_up"
grid = ["ceil_div(bins, 32)"]
block = [32, 32]
args = ["partial", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Vec { x_t at[VEC]; };

extern __shared__ unsigned counts[];

__device__ __forceinline__ void enter(float value, unsigned* own) {
    // Of the numbers up to 1, only 1 itself becomes `bins`, and counts in the last bin.
    if (value >= 0.0f && value <= 1.0f) atomicAdd(own + min(int(value * bins), bins - 1) * copies, 1u);
}

extern "C" __global__ void __launch_bounds__(THREADS)
count(const x_t* __restrict__ x, int* __restrict__ partial, long long n) {
    for (int at = threadIdx.x; at < bins * copies; at += THREADS) counts[at] = 0;
    __syncthreads();
    unsigned* own = counts + threadIdx.x % copies;
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS + threadIdx.x, all = (long long)blocks * THREADS;
    for (long long begin = first; begin < vectors; begin += all * LOADS) {
        Vec held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (begin + l * all < vectors) held[l] = reinterpret_cast<const Vec*>(x)[begin + l * all];
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (begin + l * all >= vectors) continue;
#pragma unroll
            for (int e = 0; e < VEC; ++e) enter(float(held[l].at[e]), own);
        }
    }
    if (first < n - vectors * VEC) enter(float(x[vectors * VEC + first]), own);
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += THREADS) {
        unsigned sum = 0;
#pragma unroll
        for (int copy = 0; copy < copies; ++copy) sum += counts[bin * copies + (copy + bin) % copies];  // each lane another bank
        partial[(long long)blockIdx.x * bins + bin] = int(sum);
    }
}

extern "C" __global__ void __launch_bounds__(1024)
add_up(const int* __restrict__ partial, long long* __restrict__ out) {
    __shared__ long long sums[32][33];
    const int bin = blockIdx.x * 32 + threadIdx.x;
    long long sum = 0;
#pragma unroll 4
    for (int block = threadIdx.y; block < blocks && bin < bins; block += 32) {
        sum += unsigned(partial[(long long)block * bins + bin]);
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = sums[threadIdx.x][threadIdx.y];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const int own = blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && own < bins) out[own] = sum;
}
