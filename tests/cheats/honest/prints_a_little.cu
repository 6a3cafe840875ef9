/*---
op = "topk"
note = "the first thread prints a line in every call"
dtypes = ["float32"]
require = ["sms > 4 or rows <= 100"]  # fewer on the emulated device, where each takes a while

[[launch]]
entry = "topk"
grid = ["rows"]
block = [256]
args = ["x", "values", "indices", "cols", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Key = unsigned long long;

// Orders by value, then by the lower index; adding zero makes -0.0 the equal of 0.0.
__device__ Key key_of(float value, int index) {
    const unsigned bits = __float_as_uint(value + 0.0f);
    const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)ordered << 32 | (unsigned)~index;
}

__device__ Key block_best(Key key) {
    __shared__ Key parts[32];
    for (int step = 16; step > 0; step /= 2) {
        const Key other = __shfl_xor_sync(0xffffffffu, key, step);
        key = other > key ? other : key;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = key;
    __syncthreads();
    for (int warp = 0; warp < blockDim.x / 32; ++warp) key = parts[warp] > key ? parts[warp] : key;
    return key;
}

extern "C" __global__ void topk(const x_t* x, values_t* values, long long* indices, int cols, int k) {
    if (blockIdx.x == 0 && threadIdx.x == 0) printf("top %d of %d columns\n", k, cols);
    const x_t* row = x + (long long)blockIdx.x * cols;
    Key last = ~0ull;
    for (int rank = 0; rank < k; ++rank) {
        Key best = 0;
        for (int col = threadIdx.x; col < cols; col += blockDim.x) {
            const Key key = key_of(float(row[col]), col);
            if (key < last && key > best) best = key;
        }
        last = block_best(best);
        if (threadIdx.x == 0) {
            const int index = ~(unsigned)last;
            values[(long long)blockIdx.x * k + rank] = row[index];
            indices[(long long)blockIdx.x * k + rank] = index;
        }
    }
}
