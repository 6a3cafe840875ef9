/*---
op = "sort"
note = "a bitonic sort in registers: a thread keeps neighbouring places of the row, so that most comparisons are its own, others are shuffles, and few go through shared memory; a key of value and index, which for 16-bit values is one word; where a run descends, keys are complemented"
when = "cols <= 8192"
specialize = ["cols", "size", "each", "threads", "groups"]

[knobs]
EACH = [32, 8, 16]
BLOCK = [128, 64, 256]

[let]
last = "cols - 1"
part = "1 * min(1, last // 1) + 2 * min(1, last // 2) + 4 * min(1, last // 4) + 8 * min(1, last // 8) + 16 * min(1, last // 16) + 32 * min(1, last // 32) + 64 * min(1, last // 64)"
size = "1 + part + 128 * min(1, last // 128) + 256 * min(1, last // 256) + 512 * min(1, last // 512) + 1024 * min(1, last // 1024) + 2048 * min(1, last // 2048) + 4096 * min(1, last // 4096)"
each = "min(EACH, size)"
threads = "size // each"
groups = "max(1, BLOCK // threads)"

[[launch]]
entry = "sort_rows"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
shared = "size * groups * max(4, 4 * min(1, threads // 33) * itemsize(x) // 2)"
args = ["x", "values", "indices", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <int BYTES> struct Sizes { using Key = unsigned; using Raw = unsigned short; };
template <> struct Sizes<4> { using Key = unsigned long long; using Raw = unsigned; };
using Key = Sizes<sizeof(x_t)>::Key;
using Raw = Sizes<sizeof(x_t)>::Raw;
constexpr int INDEX_BITS = sizeof(x_t) * 8;
constexpr Raw SIGN = Raw(1) << (INDEX_BITS - 1);

extern __shared__ uint4 memory[];

// Orders by value, then by index; -0.0 is the equal of 0.0. What lies beyond the row comes last.
__device__ __forceinline__ Key key_of(Raw bits, int index) {
    if ((bits & Raw(~SIGN)) == 0) bits = 0;
    Raw ordered = bits & SIGN ? Raw(~bits) : Raw(bits | SIGN);
    if (index >= cols) ordered = Raw(~Raw(0));
    return Key(ordered) << INDEX_BITS | Key(index);
}

__device__ __forceinline__ void order(Key& a, Key& b) {
    const Key smaller = a < b ? a : b;
    b = a < b ? b : a;
    a = smaller;
}

// One step of a merge: each place and that `STEP` further.
template <int STEP> __device__ __forceinline__ void step(Key (&keys)[each], int thread, int group) {
    if constexpr (STEP < each) {
#pragma unroll
        for (int e = 0; e < each; ++e) {
            if ((e & STEP) == 0) order(keys[e], keys[e | STEP]);
        }
    } else if constexpr (STEP < 32 * each) {
        const bool lower = (thread & (STEP / each)) == 0;
#pragma unroll
        for (int e = 0; e < each; ++e) {
            const Key other = __shfl_xor_sync(0xffffffffu, keys[e], STEP / each);
            keys[e] = (other < keys[e]) == lower ? other : keys[e];
        }
    } else {
        Key* const met = reinterpret_cast<Key*>(memory) + group * size;
        const bool lower = (thread & (STEP / each)) == 0;
        __syncthreads();
#pragma unroll
        for (int e = 0; e < each; ++e) met[e * threads + thread] = keys[e];
        __syncthreads();
#pragma unroll
        for (int e = 0; e < each; ++e) {
            const Key other = met[e * threads + (thread ^ (STEP / each))];
            keys[e] = (other < keys[e]) == lower ? other : keys[e];
        }
    }
    if constexpr (STEP > 1) step<STEP / 2>(keys, thread, group);
}

// Runs of RUN places become ordered, every other one in descending order.
template <int RUN> __device__ __forceinline__ void sort(Key (&keys)[each], int thread, int group) {
    if constexpr (RUN < each) {
#pragma unroll
        for (int e = 0; e < each; ++e) {
            if (e & RUN) keys[e] = ~keys[e];
        }
    } else if constexpr (RUN < size) {
        const Key mask = thread & (RUN / each) ? ~Key(0) : Key(0);
#pragma unroll
        for (int e = 0; e < each; ++e) keys[e] ^= mask;
    }
    step<RUN / 2>(keys, thread, group);
    if constexpr (RUN < each) {
#pragma unroll
        for (int e = 0; e < each; ++e) {
            if (e & RUN) keys[e] = ~keys[e];
        }
    } else if constexpr (RUN < size) {
        const Key mask = thread & (RUN / each) ? ~Key(0) : Key(0);
#pragma unroll
        for (int e = 0; e < each; ++e) keys[e] ^= mask;
    }
    if constexpr (RUN < size) sort<2 * RUN>(keys, thread, group);
}

extern "C" __global__ void __launch_bounds__(threads * groups)
sort_rows(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices, int rows) {
    const int thread = threadIdx.x % threads, group = threadIdx.x / threads;
    const long long row = (long long)blockIdx.x * groups + group;
    const Raw* from = reinterpret_cast<const Raw*>(x) + row * cols;
    Raw raw[each];
#pragma unroll
    for (int e = 0; e < each; ++e) {
        const int col = e * threads + thread;
        raw[e] = row < rows && col < cols ? from[col] : Raw(0);
    }
    Key keys[each];
#pragma unroll
    for (int e = 0; e < each; ++e) keys[e] = key_of(raw[e], e * threads + thread);
    if constexpr (size > 1) sort<2>(keys, thread, group);
    int* const found = reinterpret_cast<int*>(memory) + group * size;
    __syncthreads();
    // Turned within groups of 32, so that neither these writes nor the reads meet in a bank.
#pragma unroll
    for (int e = 0; e < each; ++e) {
        const int place = thread * each + e;
        found[place & ~31 | (place + place / 32) % 32] = int(keys[e] & Key(Raw(~Raw(0))));
    }
    __syncthreads();
    for (int place = thread; place < cols && row < rows; place += threads) {
        const int index = found[place & ~31 | (place + place / 32) % 32];
        values[row * cols + place] = x[row * cols + index];
        indices[row * cols + place] = index;
    }
}
