/*---
op = "topk"
note = "the k-th greatest key is found bit by bit by counting; then each thread ranks what lies above it"
require = ["sms > 4 or rows <= 100"]  # fewer on the emulated device, where each takes a while

[[launch]]
entry = "topk_row"
grid = ["rows"]
block = [128]
args = ["x", "values", "indices", "cols", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Key = unsigned long long;

// Orders by value, then by the lower index; adding zero makes -0.0 the equal of 0.0.
__device__ __forceinline__ Key key_of(float value, int index) {
    const unsigned bits = __float_as_uint(value + 0.0f);
    const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)ordered << 32 | (unsigned)~index;
}

extern "C" __global__ void __launch_bounds__(128)
topk_row(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices, int cols, int k) {
    const x_t* row = x + (long long)blockIdx.x * cols;
    __shared__ int total;
    Key least = 0;  // the greatest number that k keys reach
    for (int bit = 63; bit >= 0; --bit) {
        const Key tried = least | 1ull << bit;
        int count = 0;
        for (int col = threadIdx.x; col < cols; col += 128) count += key_of(float(row[col]), col) >= tried;
        if (threadIdx.x == 0) total = 0;
        __syncthreads();
        if (count) atomicAdd(&total, count);
        __syncthreads();
        if (total >= k) least = tried;
        __syncthreads();
    }
    for (int col = threadIdx.x; col < cols; col += 128) {
        const Key own = key_of(float(row[col]), col);
        if (own < least) continue;
        int rank = 0;
        for (int other = 0; other < cols; ++other) rank += key_of(float(row[other]), other) > own;
        values[(long long)blockIdx.x * k + rank] = row[col];
        indices[(long long)blockIdx.x * k + rank] = col;
    }
}
