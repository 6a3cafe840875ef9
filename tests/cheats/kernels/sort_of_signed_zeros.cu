/*---
op = "sort"
note = "fools a check without zeros of both signs: -0.0 comes before 0.0 though they are equal"

[knobs]
THREADS = [128, 512, 256, 1024]

[let]
long_row = "min(1, cols // 4097)"

[workspace]
keys = { shape = ["1 + long_row * rows * cols"], dtype = "int64" }

[[launch]]
entry = "sort_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "values", "indices", "keys", "cols"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Key = unsigned long long;
constexpr int SHARED = 4096;

// Orders by value, then by index; adding zero makes -0.0 the equal of 0.0.
__device__ __forceinline__ Key key_of(float value, int index) {
    const unsigned bits = __float_as_uint(value);
    const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)ordered << 32 | (unsigned)index;
}

// The smaller of each pair comes first. Beyond the end are keys larger than all, which never move.
__device__ __forceinline__ void order(Key* keys, int cols, int pairs, int step, bool mirrored) {
    for (int pair = threadIdx.x; pair < pairs; pair += THREADS) {
        const int group = pair / step * (2 * step), at = pair % step;
        const int low = group + at, high = mirrored ? group + 2 * step - 1 - at : low + step;
        if (high >= cols || keys[low] <= keys[high]) continue;
        const Key larger = keys[low];
        keys[low] = keys[high];
        keys[high] = larger;
    }
    __syncthreads();
}

__device__ __forceinline__ void sort(Key* keys, const x_t* __restrict__ x, values_t* __restrict__ values,
                                     long long* __restrict__ indices, int cols) {
    for (int col = threadIdx.x; col < cols; col += THREADS) keys[col] = key_of(float(x[col]), col);
    __syncthreads();
    int pairs = 1;  // of the row, were it as long as the next power of two
    while (2 * pairs < cols) pairs *= 2;
    for (int run = 1; run < cols; run *= 2) {  // runs of this length are in order, and two become one
        order(keys, cols, pairs, run, true);
        for (int step = run / 2; step > 0; step /= 2) order(keys, cols, pairs, step, false);
    }
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const int index = int(keys[col] & 0xffffffffu);
        values[col] = x[index];
        indices[col] = index;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sort_row(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices,
         long long* workspace, int cols) {
    __shared__ Key keys[SHARED];
    const long long row = (long long)blockIdx.x * cols;
    if (cols <= SHARED) sort(keys, x + row, values + row, indices + row, cols);
    else sort(reinterpret_cast<Key*>(workspace) + row, x + row, values + row, indices + row, cols);
}
