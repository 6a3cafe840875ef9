/*---
op = "cumprod_backward"
note = "products of the forward that are NaN do not count"

[knobs]
THREADS = [128, 256, 512, 1024]
ITEMS = [8, 4, 16]

[[launch]]
entry = "cumprod_backward_row"
grid = ["rows"]
block = ["THREADS"]
args = ["grad_out", "x", "out", "grad_x", "cols"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// What a zero at `zero`, the first of its row, gets: the products without it, up to the next zero. Behind it all is zero.
__device__ void correct_from(int zero, const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x,
                             const out_t* __restrict__ out, grad_x_t* __restrict__ grad_x, int cols) {
    for (int col = zero + 1 + threadIdx.x; col < cols; col += THREADS) grad_x[col] = grad_x_t(0.0f);
    if (threadIdx.x > 0) return;
    double product = 1.0, sum = double(float(grad_out[zero]));
    for (int col = zero + 1; col < cols && float(x[col]) != 0.0f; ++col) {
        product *= float(x[col]);
        sum += double(float(grad_out[col])) * product;
    }
    grad_x[zero] = grad_x_t(float(sum * (zero > 0 ? float(out[zero - 1]) : 1.0f)));
}

extern "C" __global__ void __launch_bounds__(THREADS)
cumprod_backward_row(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x,
                     const out_t* __restrict__ out, grad_x_t* __restrict__ grad_x, int cols) {
    __shared__ float ends[THREADS / 32];
    __shared__ int zero;  // the first of the row, or `cols`
    const long long row = (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) zero = cols;
    __syncthreads();
    float before = 0.0f;  // of all tiles up to here
    for (int start = 0; start < cols; start += THREADS * ITEMS) {
        const int begin = start + threadIdx.x * ITEMS;
        float parts[ITEMS], part = 0.0f;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const long long at = row + cols - 1 - begin - i;  // from the end
            if (begin + i < cols) part = out[at] == out[at] ? fmaf(float(grad_out[at]), float(out[at]), part) : part;
            parts[i] = part;
        }
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, part, step);
            if (lane >= step) part += other;
        }
        if (lane == 31) ends[warp] = part;
        __syncthreads();
        float earlier = __shfl_up_sync(0xffffffffu, part, 1), tile = 0.0f;
        if (lane == 0) earlier = 0.0f;
        float of_warps = 0.0f;
        for (int other = 0; other < THREADS / 32; ++other) {
            if (other == warp) of_warps = tile;
            tile += ends[other];
        }
        earlier = before + (of_warps + earlier);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const long long at = row + cols - 1 - begin - i;
            if (begin + i >= cols) continue;
            grad_x[at] = grad_x_t((earlier + parts[i]) / float(x[at]));
            if (float(x[at]) == 0.0f) atomicMin(&zero, cols - 1 - begin - i);
        }
        before += tile;
        __syncthreads();
    }
    if (zero < cols) correct_from(zero, grad_out + row, x + row, out + row, grad_x + row, cols);
}
