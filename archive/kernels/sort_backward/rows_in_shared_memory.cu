/*---
op = "sort_backward"
note = "a group of threads per row: gradients and indices are read side by side, several loads in flight, put in place in shared memory, and written by the widest stores"
when = "cols * itemsize(grad_values) <= 65536"
specialize = ["cols", "vec", "wide", "threads", "groups", "padded"]

[knobs]
THREADS = [256, 128, 512]
LOADS = [4, 2, 8]

[let]
full = "16 // itemsize(grad_values)"
vec = "min(full, 1 + (1 - min(1, cols % 2)) + 2 * (1 - min(1, cols % 4)) + 4 * (1 - min(1, cols % 8)))"
wide = "min(2, vec)"
threads = "min(THREADS, 32 * ceil_div(cols, 32 * 4))"
groups = "max(1, THREADS // threads)"
padded = "ceil_div(cols, full) * full"

[[launch]]
entry = "put_back"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
shared = "groups * padded * itemsize(grad_values)"
args = ["grad_values", "indices", "grad_x", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern __shared__ uint4 memory[];
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };

extern "C" __global__ void __launch_bounds__(threads * groups)
put_back(const grad_values_t* __restrict__ grad_values, const long long* __restrict__ indices,
         grad_x_t* __restrict__ grad_x, int rows) {
    const int thread = threadIdx.x % threads, group = threadIdx.x / threads;
    const long long row = (long long)blockIdx.x * groups + group;
    grad_values_t* const own = reinterpret_cast<grad_values_t*>(memory) + group * padded;
    for (int begin = thread * wide; begin < cols && row < rows; begin += threads * wide * LOADS) {
        Pack<long long, wide> places[LOADS];
        Pack<grad_values_t, wide> grads[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * threads * wide;
            if (at >= cols) continue;
            places[l] = *reinterpret_cast<const Pack<long long, wide>*>(indices + row * cols + at);
            grads[l] = *reinterpret_cast<const Pack<grad_values_t, wide>*>(grad_values + row * cols + at);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (begin + l * threads * wide >= cols) continue;
#pragma unroll
            for (int e = 0; e < wide; ++e) own[places[l].at[e]] = grads[l].at[e];
        }
    }
    __syncthreads();
    for (int at = thread * vec; at < cols && row < rows; at += threads * vec) {
        *reinterpret_cast<Pack<grad_x_t, vec>*>(grad_x + row * cols + at) = *reinterpret_cast<Pack<grad_x_t, vec>*>(own + at);
    }
}
