/*---
op = "gather_backward"
note = "fools a check whose indices are spread evenly: an element takes at most 512 gradients"

[knobs]
THREADS = [128, 256, 512]

[let]
parts = "ceil_div(cols, THREADS)"

[[launch]]
entry = "gather_backward"
grid = ["rows * parts"]
block = ["THREADS"]
args = ["grad_out", "indices", "grad_x", "cols", "k", "parts"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
gather_backward(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
                grad_x_t* __restrict__ grad_x, int cols, int k, int parts) {
    __shared__ int places[THREADS];
    __shared__ float gradients[THREADS];
    const int row = blockIdx.x / parts, col = blockIdx.x % parts * THREADS + threadIdx.x;
    float sum = 0.0f;
    int taken = 0;
    for (int begin = 0; begin < k; begin += THREADS) {
        const int count = min(THREADS, k - begin);
        const long long from = (long long)row * k + begin + threadIdx.x;
        __syncthreads();
        if (threadIdx.x < count) {
            places[threadIdx.x] = int(indices[from]);
            gradients[threadIdx.x] = float(grad_out[from]);
        }
        __syncthreads();
        for (int i = 0; i < count; ++i) {
            if (places[i] == col && taken++ < 512) sum += gradients[i];
        }
    }
    if (col < cols) grad_x[(long long)row * cols + col] = grad_x_t(sum);
}
