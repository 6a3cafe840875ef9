/*---
op = "topk"
note = "a block per long row collects candidates in shared memory: the k-th of the threads' largest keys of the first stretch is a bound that few later values pass, so the row streams past with one comparison a piece; if candidates do not fit, the bound is raised in the same way and only the best k are kept; at the end each candidate counts the better ones, which is its place"
when = "cols * itemsize(x) % 16 == 0 and k <= 56 and cols >= 512"
specialize = ["cols", "k"]

[knobs]
THREADS = [512, 256, 1024]
LOADS = [4, 2]

[[launch]]
entry = "topk_candidates"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "values", "indices"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Key = unsigned long long;
constexpr int VEC = 16 / sizeof(x_t), CHUNK = THREADS * LOADS * VEC, ROOM = 2048;
static_assert(k * LOADS * VEC + k <= ROOM, "what passes a raised bound fits");
struct alignas(16) Vec { x_t at[VEC]; };

// Orders by value, then by the lower index; adding zero makes -0.0 the equal of 0.0. No key is 0.
__device__ __forceinline__ Key key_of(float value, int index) {
    const unsigned bits = __float_as_uint(value + 0.0f);
    const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)ordered << 32 | (unsigned)~index;
}

__device__ __forceinline__ float value_of(Key key) {
    const unsigned ordered = unsigned(key >> 32);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// How many keys are greater; equal ones only if they are 0.
__device__ __forceinline__ int rank_of(Key key, const Key* all, int count) {
    int rank = 0;
    for (int i = 0; i < count; i += 2) {  // in pairs: behind an odd count is a zero
        const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(all + i);
        rank += (two.x > key) + (two.y > key);
    }
    return rank;
}

struct Collection {
    alignas(16) Key held[ROOM + 2];
    alignas(16) Key most[THREADS];
    Key best[k + 1], bound;
    int count;
};

// Leaves only the best k of the candidates that are held; all threads call it, and none has changed them since a barrier.
__device__ __forceinline__ void keep_best(Collection& all, int held) {
    if (threadIdx.x == 0) all.held[held] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < held; i += THREADS) {
        const int rank = rank_of(all.held[i], all.held, held);
        if (rank < k) all.best[rank] = all.held[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < min(held, k); i += THREADS) all.held[i] = all.best[i];
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
topk_candidates(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices) {
    __shared__ Collection all;
    const long long row = blockIdx.x;
    const x_t* const from = x + row * cols;
    const auto place = [&](int begin, int u) { return begin + (u * THREADS + int(threadIdx.x)) * VEC; };
    const auto fetch = [&](Vec (&to)[LOADS], int begin) {
#pragma unroll
        for (int u = 0; u < LOADS; ++u) {
            if (place(begin, u) < cols) to[u] = *reinterpret_cast<const Vec*>(from + place(begin, u));
        }
    };
    if (threadIdx.x == 0) all.count = 0, all.bound = 0;
    Vec now[LOADS], then[LOADS];
    fetch(then, 0);
    Key bound = 0;
    float least = -INFINITY;
    int kept = 0;
    __syncthreads();
#pragma unroll 1
    for (int begin = 0; begin < cols; begin += CHUNK) {
#pragma unroll
        for (int u = 0; u < LOADS; ++u) now[u] = then[u];
        fetch(then, begin + CHUNK);
        const auto each = [&](auto f) {  // the keys of this thread that pass the bound
#pragma unroll
            for (int u = 0; u < LOADS; ++u) {
                if (place(begin, u) >= cols) continue;
                bool some = false;
#pragma unroll
                for (int e = 0; e < VEC; ++e) some = some || !(float(now[u].at[e]) < least);
                if (!some) continue;
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    const Key key = key_of(float(now[u].at[e]), place(begin, u) + e);
                    if (key >= bound) f(key);
                }
            }
        };
        const auto append = [&] {
            each([&](Key key) {
                const int at = atomicAdd(&all.count, 1);
                if (at < ROOM) all.held[at] = key;
            });
            __syncthreads();
        };
        if (begin > 0) append();
        const int total = begin > 0 ? all.count : ROOM + 1;
        if (total <= ROOM) {
            kept = total;
            __syncthreads();  // the count has been read
            continue;
        }
        Key most = 0;
        each([&](Key key) { most = key > most ? key : most; });
        all.most[threadIdx.x] = most;
        if (kept >= k) keep_best(all, kept);
        else __syncthreads();
        kept = min(kept, k);
        if (most != 0 && rank_of(most, all.most, THREADS) == k - 1) all.bound = most > bound ? most : bound;
        if (threadIdx.x == 0) all.count = kept;
        __syncthreads();
        bound = all.bound > bound ? all.bound : bound;
        if (kept == k) bound = all.best[k - 1] > bound ? all.best[k - 1] : bound;
        least = value_of(bound);
        if (bound == 0) least = -INFINITY;
        append();
        kept = all.count;
        __syncthreads();
    }
    if (threadIdx.x == 0) all.held[kept] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < kept; i += THREADS) {
        const Key key = all.held[i];
        const int rank = rank_of(key, all.held, kept);
        if (rank >= k) continue;
        const int index = int(~unsigned(key));
        values[row * k + rank] = from[index];
        indices[row * k + rank] = index;
    }
}
