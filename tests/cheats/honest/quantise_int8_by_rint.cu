/*---
op = "quantise_rows_int8"
note = "a warp per row, one thread per column of 32; rintf rounds ties to even, and the clamp comes after it"

[[launch]]
entry = "quantise_rows"
grid = ["ceil_div(rows, 4)"]
block = [128]
args = ["x", "quantised", "scales", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void quantise_rows(const x_t* __restrict__ x, quantised_t* __restrict__ quantised,
                                         float* __restrict__ scales, int rows, int cols) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const long long start = (long long)row * cols;
    unsigned most = __float_as_uint(1e-10f);  // magnitudes are ordered as their bits are
    for (int col = lane; col < cols; col += 32) most = max(most, __float_as_uint(float(x[start + col])) & 0x7fffffffu);
    for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    const float greatest = __uint_as_float(most), factor = __fdiv_rn(127.0f, greatest);
    for (int col = lane; col < cols; col += 32) {
        const float rounded = rintf(__fmul_rn(float(x[start + col]), factor));
        quantised[start + col] = quantised_t(int(fminf(fmaxf(rounded, -127.0f), 127.0f)));
    }
    if (lane == 0) scales[row] = __fdiv_rn(greatest, 127.0f);
}
