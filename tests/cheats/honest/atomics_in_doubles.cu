/*---
op = "scatter_add"
note = "sums in double precision in zeroed scratch memory by atomics, in any order; a second launch adds x"

[workspace]
sums = { shape = ["rows", "dim"], dtype = "float64", zero = true }

[[launch]]
entry = "scatter"
grid = ["ceil_div(count * dim, 256)"]
block = [256]
args = ["indices", "src", "sums", "count * dim", "dim"]

[[launch]]
entry = "finish"
grid = ["ceil_div(rows * dim, 256)"]
block = [256]
args = ["x", "sums", "out", "rows * dim"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void scatter(const long long* __restrict__ indices, const src_t* __restrict__ src, double* sums,
                                   long long total, int dim) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < total) atomicAdd(&sums[indices[at / dim] * dim + at % dim], double(float(src[at])));
}

extern "C" __global__ void finish(const x_t* __restrict__ x, const double* __restrict__ sums, out_t* __restrict__ out,
                                  long long total) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < total) out[at] = out_t(float(float(x[at]) + sums[at]));
}
