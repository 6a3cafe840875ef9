/*---
op = "gather_backward"
note = "few indices a row, which wait in shared memory: a thread makes the stores of 16 bytes that it comes to in registers, zero but where an index falls into them; no row is held and nothing is cleared first"
when = "k <= 32"
specialize = ["cols", "k", "vec", "parts", "packs"]

[knobs]
ROUNDS = [8, 4, 16]
THREADS = [256, 128]

[let]
vec = "min(16 // itemsize(grad_x), 1 + (1 - min(1, cols % 2)) + 2 * (1 - min(1, cols % 4)) + 4 * (1 - min(1, cols % 8)))"
packs = "cols // vec"
parts = "ceil_div(packs, THREADS * ROUNDS)"

[[launch]]
entry = "add_up"
grid = ["rows * parts"]
block = ["THREADS"]
args = ["grad_out", "indices", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct alignas(sizeof(grad_x_t) * vec < 16 ? sizeof(grad_x_t) * vec : 16) Pack { grad_x_t at[vec]; };

extern "C" __global__ void __launch_bounds__(THREADS)
add_up(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices, grad_x_t* __restrict__ grad_x) {
    __shared__ int places[k];
    __shared__ float grads[k];
    const long long row = blockIdx.x / parts;
    if (threadIdx.x < k) {
        places[threadIdx.x] = int(indices[row * k + threadIdx.x]);
        grads[threadIdx.x] = float(grad_out[row * k + threadIdx.x]);
    }
    __syncthreads();
    Pack* const to = reinterpret_cast<Pack*>(grad_x + row * cols);
    const int first = int(blockIdx.x % parts) * (THREADS * ROUNDS) + threadIdx.x;
#pragma unroll 2
    for (int i = 0; i < ROUNDS; ++i) {
        const int at = first + i * THREADS;
        if (at >= packs) break;
        float sums[vec] = {};
#pragma unroll 4
        for (int j = 0; j < k; ++j) {
            const int off = places[j] - at * vec;
            if (off < 0 || off >= vec) continue;
#pragma unroll
            for (int e = 0; e < vec; ++e) sums[e] += e == off ? grads[j] : 0.0f;
        }
        Pack result;
#pragma unroll
        for (int e = 0; e < vec; ++e) result.at[e] = grad_x_t(sums[e]);
        to[at] = result;
    }
}
