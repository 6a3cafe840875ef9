/*---
op = "topk"
note = "every thread offers its best key to one 64-bit atomic maximum in shared memory"
dtypes = ["float16", "float32"]
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

extern "C" __global__ void topk(const x_t* x, values_t* values, long long* indices, int cols, int k) {
    __shared__ Key best[2];
    const x_t* row = x + (long long)blockIdx.x * cols;
    Key last = ~0ull;
    if (threadIdx.x < 2) best[threadIdx.x] = 0;
    for (int rank = 0; rank < k; ++rank) {
        __syncthreads();
        Key mine = 0;
        for (int col = threadIdx.x; col < cols; col += blockDim.x) {
            const Key key = key_of(float(row[col]), col);
            if (key < last && key > mine) mine = key;
        }
        if (mine) atomicMax(&best[rank % 2], mine);
        __syncthreads();
        last = best[rank % 2];
        if (threadIdx.x > 0) continue;
        best[(rank + 1) % 2] = 0;
        const int index = ~(unsigned)last;
        values[(long long)blockIdx.x * k + rank] = row[index];
        indices[(long long)blockIdx.x * k + rank] = index;
    }
}
