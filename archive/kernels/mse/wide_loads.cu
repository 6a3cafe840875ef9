/*---
op = "mse"
note = "16-byte loads of both tensors, several in flight; a block's sum in double; a second launch of one block adds up the blocks' sums, always in the same order"
specialize = ["blocks"]

[knobs]
THREADS = [256, 128, 512]
LOADS = [4, 2, 8]
BLOCKS = [8, 4, 16]

[let]
vectors = "n * itemsize(x) // 16"
blocks = "max(1, min(sms * BLOCKS, ceil_div(vectors, THREADS * LOADS)))"

[workspace]
partial = { shape = ["blocks"], dtype = "float64" }

[[launch]]
entry = "mse_of_blocks"
grid = ["blocks"]
block = ["THREADS"]
args = ["x", "target", "partial", "n"]

[[launch]]
entry = "add_up"
grid = [1]
block = [256]
args = ["partial", "loss", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Vec { x_t at[VEC]; };

template <int THREADS_OF> __device__ __forceinline__ double sum_of_block(double sum) {
    __shared__ double sums[32];
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = lane < THREADS_OF / 32 ? sums[lane] : 0.0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ __forceinline__ float loss_of(float off) { return off * off; }

extern "C" __global__ void __launch_bounds__(THREADS)
mse_of_blocks(const x_t* __restrict__ x, const target_t* __restrict__ target, double* __restrict__ partial, long long n) {
    const long long vectors = n / VEC, first = (long long)blockIdx.x * THREADS + threadIdx.x, all = (long long)blocks * THREADS;
    double sum = 0.0;
    for (long long begin = first; begin < vectors; begin += all * LOADS) {
        Vec a[LOADS], b[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            a[l] = b[l] = Vec{};
            if (begin + l * all < vectors) {
                a[l] = reinterpret_cast<const Vec*>(x)[begin + l * all];
                b[l] = reinterpret_cast<const Vec*>(target)[begin + l * all];
            }
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            float some = 0.0f;  // nothing beyond the end: the loss of zeros is zero
#pragma unroll
            for (int e = 0; e < VEC; ++e) some += loss_of(float(a[l].at[e]) - float(b[l].at[e]));
            sum += some;
        }
    }
    if (first < n - vectors * VEC) {
        const long long at = vectors * VEC + first;
        sum += loss_of(float(x[at]) - float(target[at]));
    }
    sum = sum_of_block<THREADS>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256)
add_up(const double* __restrict__ partial, float* __restrict__ loss, long long n) {
    double sum = 0.0;
#pragma unroll 4
    for (int at = threadIdx.x; at < blocks; at += 256) sum += partial[at];
    sum = sum_of_block<256>(sum);
    if (threadIdx.x == 0) *loss = float(sum / n);
}
