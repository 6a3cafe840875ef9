/*---
op = "topk"
note = "a bitonic sort of the whole row in shared memory, for rows of up to 2048 columns"
when = "cols <= 2048"
dtypes = ["bfloat16", "float32"]
require = ["sms > 4 or rows <= 100"]  # fewer on the emulated device, where each takes a while

[[launch]]
entry = "topk"
grid = ["rows"]
block = [512]
shared = 16384
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
    extern __shared__ Key keys[];
    const x_t* row = x + (long long)blockIdx.x * cols;
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) keys[i] = i < cols ? key_of(float(row[i]), i) : 0;
    for (int run = 2; run <= 2048; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < 2048; i += blockDim.x) {
                const int j = i ^ step;
                if (j < i) continue;
                const Key a = keys[i], b = keys[j];
                if ((a < b) == ((i & run) == 0)) keys[i] = b, keys[j] = a;
            }
        }
    }
    __syncthreads();
    for (int rank = threadIdx.x; rank < k; rank += blockDim.x) {
        const int index = ~(unsigned)keys[rank];
        values[(long long)blockIdx.x * k + rank] = row[index];
        indices[(long long)blockIdx.x * k + rank] = index;
    }
}
