/*---
op = "sort"
note = "a radix sort with digits of one bit: zeros keep their order before ones, counted by a scan, in two buffers of the workspace"
when = "cols <= 10000"
require = ["sms > 4 or rows <= 200"]  # fewer on the emulated device, where each takes a while

[workspace]
keys = { shape = ["rows", 2, "cols"], dtype = "int32" }
places = { shape = ["rows", 2, "cols"], dtype = "int32" }

[[launch]]
entry = "sort_row"
grid = ["rows"]
block = [64]
args = ["x", "values", "indices", "keys", "places", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ unsigned key_of(float value) {
    const unsigned bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

extern "C" __global__ void __launch_bounds__(64)
sort_row(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices, int* keys,
         int* places, int cols) {
    __shared__ int before[64];
    const long long row = (long long)blockIdx.x * cols;
    unsigned* key[2] = {(unsigned*)keys + 2 * row, (unsigned*)keys + 2 * row + cols};
    int* place[2] = {places + 2 * row, places + 2 * row + cols};
    const int share = (cols + 63) / 64, first = min(int(threadIdx.x) * share, cols), last = min(first + share, cols);
    for (int at = first; at < last; ++at) key[0][at] = key_of(float(x[row + at])), place[0][at] = at;
    for (int bit = 0; bit < 32; ++bit) {
        const int from = bit % 2, to = 1 - from;
        int zeros = 0;
        for (int at = first; at < last; ++at) zeros += !(key[from][at] >> bit & 1);
        before[threadIdx.x] = zeros;
        __syncthreads();
        for (int step = 1; step < 64; step *= 2) {
            const int other = threadIdx.x >= step ? before[threadIdx.x - step] : 0;
            __syncthreads();
            before[threadIdx.x] += other;
            __syncthreads();
        }
        int next_zero = before[threadIdx.x] - zeros, next_one = before[63] + first - next_zero;
        for (int at = first; at < last; ++at) {
            const int target = key[from][at] >> bit & 1 ? next_one++ : next_zero++;
            key[to][target] = key[from][at];
            place[to][target] = place[from][at];
        }
        __syncthreads();
    }
    for (int at = first; at < last; ++at) {
        values[row + at] = x[row + place[0][at]];
        indices[row + at] = place[0][at];
    }
}
