/*---
op = "topk"
note = "one warp per row: each lane offers its best, a vote and __ffs find the winning lane, no shared memory"
dtypes = ["float32", "float16"]

[[launch]]
entry = "topk"
grid = ["ceil_div(rows, 4)"]
block = [128]
args = ["x", "values", "indices", "rows", "cols", "k"]
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

extern "C" __global__ void topk(const x_t* x, values_t* values, long long* indices, int rows, int cols, int k) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const x_t* from = x + (long long)row * cols;
    Key last = ~0ull;
    for (int rank = 0; rank < k; ++rank) {
        Key best = 0;
        for (int col = lane; col < cols; col += 32) {
            const Key key = key_of(float(from[col]), col);
            if (key < last && key > best) best = key;
        }
        const unsigned high = __reduce_max_sync(0xffffffffu, (unsigned)(best >> 32));
        const unsigned low = __reduce_max_sync(0xffffffffu, best >> 32 == high ? (unsigned)best : 0u);
        last = (Key)high << 32 | low;
        const unsigned owners = __ballot_sync(0xffffffffu, best == last);
        if (lane != __ffs(owners) - 1) continue;
        values[(long long)row * k + rank] = from[(int)~low];
        indices[(long long)row * k + rank] = (int)~low;
    }
}
