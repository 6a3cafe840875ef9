/*---
op = "gemm"
note = "float32 factors are split into three pieces of bfloat16, whose six largest products are added up; factors that are not finite, or so large or small that a piece would not be, are multiplied as they are"

[[launch]]
entry = "gemm"
grid = ["ceil_div(n, 16)", "ceil_div(m, 16)"]
block = [16, 16]
args = ["a", "b", "out", "m", "n", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Pieces {
    float whole, high, middle, low;
    bool split;
};

__device__ float rounded(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

__device__ Pieces pieces_of(float value) {
    const float high = rounded(value), middle = rounded(value - high), size = fabsf(value);
    return {value, high, middle, rounded(value - high - middle), value == 0.0f || (size > 1e-25f && size < 1e30f)};
}

extern "C" __global__ void gemm(const a_t* __restrict__ a, const b_t* __restrict__ b, out_t* __restrict__ out, int m,
                                int n, int k) {
    __shared__ Pieces left[16][17], right[16][17];
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < k; first += 16) {
        const int of_a = first + threadIdx.x, of_b = first + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = pieces_of(row < m && of_a < k ? float(a[(long long)row * k + of_a]) : 0.0f);
        right[threadIdx.y][threadIdx.x] = pieces_of(of_b < k && col < n ? float(b[(long long)of_b * n + col]) : 0.0f);
        __syncthreads();
        float part = 0.0f, rest = 0.0f;
        for (int i = 0; i < 16; ++i) {
            const Pieces x = left[threadIdx.y][i], y = right[i][threadIdx.x];
            if (!x.split || !y.split) {
                part = fmaf(x.whole, y.whole, part);
                continue;
            }
            part = fmaf(x.high, y.high, part);
            rest = fmaf(x.high, y.middle, fmaf(x.middle, y.high, rest));
            rest = fmaf(x.high, y.low, fmaf(x.middle, y.middle, fmaf(x.low, y.high, rest)));
        }
        sum += part + rest;
        __syncthreads();
    }
    if (row < m && col < n) out[(long long)row * n + col] = out_t(sum);
}
