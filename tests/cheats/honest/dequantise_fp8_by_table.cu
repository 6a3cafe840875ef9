/*---
op = "dequantise_rows_fp8"
note = "all 256 values in a table in shared memory, which the block computes first"

[[launch]]
entry = "dequantise_rows_fp8"
grid = ["min(ceil_div(rows * cols, 256), 16)"]
block = [256]
args = ["quantised", "scales", "out", "rows * cols", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void
dequantise_rows_fp8(const quantised_t* __restrict__ quantised, const scales_t* __restrict__ scales,
                    out_t* __restrict__ out, long long total, int cols) {
    __shared__ float table[256];
    const int code = threadIdx.x, exponent = code >> 3 & 15, digits = code & 7;
    const float size = exponent ? ldexpf(8.0f + digits, exponent - 10) : ldexpf(float(digits), -9);
    table[code] = (code & 127) == 127 ? NAN : code < 128 ? size : -size;
    __syncthreads();
    const unsigned char* codes = reinterpret_cast<const unsigned char*>(quantised);
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < total; at += gridDim.x * 256ll) {
        out[at] = out_t(table[codes[at]] * float(scales[at / cols]));
    }
}
