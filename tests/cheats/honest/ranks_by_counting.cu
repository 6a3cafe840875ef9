/*---
op = "sort"
note = "every value counts how many come before it, equal ones by their column; for rows of up to 1024 columns"

when = "cols <= 1024"

[[launch]]
entry = "sort_row"
grid = ["rows"]
block = [256]
args = ["x", "values", "indices", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void sort_row(const x_t* __restrict__ x, values_t* __restrict__ values,
                                    long long* __restrict__ indices, int cols) {
    __shared__ float row[1024];
    const long long start = (long long)blockIdx.x * cols;
    for (int col = threadIdx.x; col < cols; col += 256) row[col] = float(x[start + col]);
    __syncthreads();
    for (int col = threadIdx.x; col < cols; col += 256) {
        int rank = 0;
        for (int other = 0; other < cols; ++other) {
            rank += row[other] < row[col] || (row[other] == row[col] && other < col);
        }
        values[start + rank] = x[start + col];
        indices[start + rank] = col;
    }
}
