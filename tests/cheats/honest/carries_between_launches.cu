/*---
op = "cumsum"
note = "a block per tile of 512 columns adds it up, a second launch adds up the tiles before each and scans its own"

[let]
tiles = "ceil_div(cols, 512)"

[workspace]
sums = { shape = ["rows * tiles"], dtype = "float64" }

[[launch]]
entry = "sum_tile"
grid = ["rows * tiles"]
block = [32]
args = ["x", "sums", "cols", "tiles"]

[[launch]]
entry = "scan_tile"
grid = ["rows * tiles"]
block = [32]
args = ["x", "sums", "out", "cols", "tiles"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void sum_tile(const x_t* __restrict__ x, double* __restrict__ sums, int cols, int tiles) {
    const int first = blockIdx.x % tiles * 512;
    x += (long long)(blockIdx.x / tiles) * cols;
    double sum = 0.0;
    for (int col = first + threadIdx.x; col < min(first + 512, cols); col += 32) sum += double(float(x[col]));
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

extern "C" __global__ void scan_tile(const x_t* __restrict__ x, const double* __restrict__ sums,
                                     out_t* __restrict__ out, int cols, int tiles) {
    const int tile = blockIdx.x % tiles;
    const long long row = blockIdx.x / tiles;
    x += row * cols, out += row * cols, sums += row * tiles;
    double before = 0.0;
    for (int other = threadIdx.x; other < tile; other += 32) before += sums[other];
    for (int step = 16; step > 0; step /= 2) before += __shfl_xor_sync(0xffffffffu, before, step);
    for (int first = tile * 512; first < min(tile * 512 + 512, cols); first += 32) {
        const int col = first + threadIdx.x;
        double sum = col < cols ? double(float(x[col])) : 0.0;
        for (int step = 1; step < 32; step *= 2) {
            const double other = __shfl_up_sync(0xffffffffu, sum, step);
            if (threadIdx.x >= step) sum += other;
        }
        if (col < cols) out[col] = out_t(float(before + sum));
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
}
