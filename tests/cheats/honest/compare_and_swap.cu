/*---
op = "softmax"
note = "the maximum of a row by atomicCAS on the bits of a float in shared memory, the sum by atomicCAS in zeroed scratch memory"
dtypes = ["float32"]

[workspace]
sums = { shape = ["rows"], dtype = "int32", zero = true }

[[launch]]
entry = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "sums", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ void raise(int* bits, float value) {
    int seen = *(volatile int*)bits;
    while (__int_as_float(seen) < value) {
        const int before = atomicCAS(bits, seen, __float_as_int(value));
        if (before == seen) return;
        seen = before;
    }
}

__device__ void add(int* bits, float value) {
    int seen = *(volatile int*)bits;
    for (;;) {
        const int before = atomicCAS(bits, seen, __float_as_int(__int_as_float(seen) + value));
        if (before == seen) return;
        seen = before;
    }
}

extern "C" __global__ void softmax(const x_t* x, out_t* out, int* sums, int cols) {
    __shared__ int most;
    const x_t* row = x + (long long)blockIdx.x * cols;
    float own = -INFINITY, sum = 0.0f;
    if (threadIdx.x == 0) most = __float_as_int(-INFINITY);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) own = fmaxf(own, row[col]);
    for (int step = 16; step > 0; step /= 2) own = fmaxf(own, __shfl_xor_sync(0xffffffffu, own, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) raise(&most, own);
    __syncthreads();
    own = __int_as_float(most);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += expf(row[col] - own);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) add(&sums[blockIdx.x], sum);
    __syncthreads();
    sum = __int_as_float(__ldcg(&sums[blockIdx.x]));
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[(long long)blockIdx.x * cols + col] = expf(row[col] - own) / sum;
    }
}
