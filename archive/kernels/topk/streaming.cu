/*---
op = "topk"
note = "read once at streaming speed: a warp holds its best keys across its lanes, in order, and looks closer only at chunks whose maximum beats the last of them; the k-th largest of the lanes' first maxima spares it most insertions; warps that share a row merge at the end"
when = "cols * itemsize(x) % 16 == 0 and k <= 128"
specialize = ["cols", "k", "slots", "loads", "split", "groups"]
require = ["split * groups <= 32"]

[knobs]
UNROLL = [4, 1, 2, 8]
WARPS = [4, 2, 8]
SPLIT = [1, 2, 4]
FILL = [16, 8, 32]

[let]
slots = "ceil_div(k, 32)"
loads = "min(UNROLL, ceil_div(cols * itemsize(x), 512))"
chunks = "ceil_div(cols * itemsize(x), 512 * loads)"
split = "max(1, min(max(SPLIT, sms * FILL // rows), min(chunks, 32)))"
groups = "max(1, WARPS // split)"

[[launch]]
entry = "topk_rows"
grid = ["ceil_div(rows, groups)"]
block = ["32 * split * groups"]
args = ["x", "values", "indices", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Key = unsigned long long;
constexpr int VEC = 16 / sizeof(x_t), CHUNK = 32 * VEC * loads;
constexpr unsigned ALL = 0xffffffffu;
struct alignas(16) Vec { x_t at[VEC]; };
struct Best { Key at[slots]; };  // a warp's largest keys in descending order: rank 32 * slot + lane

// Orders by value, then by the lower index; adding zero makes -0.0 the equal of 0.0. No key is 0.
__device__ __forceinline__ Key key_of(float value, int index) {
    const unsigned bits = __float_as_uint(value + 0.0f);
    const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)ordered << 32 | (unsigned)~index;
}

// The value of the k-th best key, below which nothing counts any more; NaN until there are k keys.
__device__ __forceinline__ float bound_of(const Best& best) {
    const unsigned ordered = __shfl_sync(ALL, (unsigned)(best.at[(k - 1) / 32] >> 32), (k - 1) % 32);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

__device__ __forceinline__ void insert(Best& best, Key key, int lane) {
#pragma unroll
    for (int s = slots - 1; s >= 0; --s) {
        const Key below = __shfl_up_sync(ALL, best.at[s], 1);
        const Key wrapped = s > 0 ? __shfl_sync(ALL, best.at[s > 0 ? s - 1 : 0], 31) : ~0ull;
        const Key above = lane == 0 ? wrapped : below;
        if (best.at[s] < key) best.at[s] = above < key ? above : key;
    }
}

// Puts a bitonic sequence, one key a lane, into descending order.
__device__ __forceinline__ Key ordered(Key key, int lane) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const Key other = __shfl_xor_sync(ALL, key, step);
        key = ((lane & step) == 0) == (key > other) ? key : other;
    }
    return key;
}

__device__ __forceinline__ void merge(Best& best, const Key* others, int lane) {
#pragma unroll
    for (int t = 0; t < slots; ++t) {
        Key rest = others[32 * t + lane];
#pragma unroll
        for (int s = t; s < slots; ++s) {
            const Key turned = __shfl_xor_sync(ALL, rest, 31), mine = best.at[s];
            best.at[s] = ordered(mine > turned ? mine : turned, lane);
            rest = ordered(mine > turned ? turned : mine, lane);
        }
    }
}

// The k-th largest of one value a lane, for k up to 32.
__device__ __forceinline__ float kth_of_lanes(float value, int lane) {
#pragma unroll
    for (int run = 2; run <= 32; run *= 2) {
#pragma unroll
        for (int step = run / 2; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(ALL, value, step);
            value = ((lane & run) == 0) == ((lane & step) == 0) ? fmaxf(value, other) : fminf(value, other);
        }
    }
    return __shfl_sync(ALL, value, (k - 1) % 32);
}

// Inserts every value of the chunk that is no smaller than the bound, which rises on the way.
__device__ __forceinline__ void take(const Vec (&chunk)[loads], const float (&tops)[loads], int begin, float bound,
                                     Best& best, int lane) {
#pragma unroll
    for (int u = 0; u < loads; ++u) {
        if (!__any_sync(ALL, tops[u] >= bound)) continue;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const float value = float(chunk[u].at[e]);
            unsigned wanted = __ballot_sync(ALL, value >= bound);
            if (wanted == 0) continue;
            const Key key = key_of(value, begin + (u * 32 + lane) * VEC + e);
            for (; wanted; wanted &= wanted - 1) insert(best, __shfl_sync(ALL, key, __ffs(wanted) - 1), lane);
            bound = fmaxf(bound, bound_of(best));
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * split * groups, 1)
topk_rows(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices, int rows) {
    const int lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0), part = warp % split;
    const int group = warp / split;
    const int row = blockIdx.x * groups + group;
    const x_t* from = x + (long long)row * cols;
    Best best;
#pragma unroll
    for (int s = 0; s < slots; ++s) best.at[s] = 0;
    float bound = NAN;
    for (int begin = part * CHUNK; begin < cols && row < rows; begin += split * CHUNK) {
        Vec chunk[loads];
        float tops[loads], top = -INFINITY;
#pragma unroll
        for (int u = 0; u < loads; ++u) {
            const int at = begin + (u * 32 + lane) * VEC;
            if (cols % CHUNK == 0 || at < cols) chunk[u] = *reinterpret_cast<const Vec*>(from + at);
            else {
#pragma unroll
                for (int e = 0; e < VEC; ++e) chunk[u].at[e] = x_t(NAN);  // never wanted
            }
        }
#pragma unroll
        for (int u = 0; u < loads; ++u) {
            tops[u] = -INFINITY;
#pragma unroll
            for (int e = 0; e < VEC; ++e) tops[u] = fmaxf(tops[u], float(chunk[u].at[e]));
            top = fmaxf(top, tops[u]);
        }
        // What equals the bound comes after its equals in the list, which are of earlier chunks, and loses.
        if (!__any_sync(ALL, !(top <= bound))) continue;
        const bool first = begin == part * CHUNK;
        const float least = first && k <= 32 ? kth_of_lanes(top, lane) : fmaxf(bound, -INFINITY);
        take(chunk, tops, begin, least, best, lane);
        bound = bound_of(best);
    }
    if constexpr (split > 1) {
        __shared__ Key lists[groups][split][32 * slots];
        for (int left = split; left > 1; left = (left + 1) / 2) {
            const int half = (left + 1) / 2;
#pragma unroll
            for (int s = 0; s < slots; ++s) {
                if (part >= half && part < left) lists[group][part][32 * s + lane] = best.at[s];
            }
            __syncthreads();
            if (part + half < left) merge(best, lists[group][part + half], lane);
        }
    }
#pragma unroll
    for (int s = 0; s < slots; ++s) {
        const int rank = 32 * s + lane, index = max(0, (int)~(unsigned)best.at[s]);  // none found among NaNs: -1
        if (part == 0 && row < rows && rank < k) {
            values[(long long)row * k + rank] = from[index];
            indices[(long long)row * k + rank] = index;
        }
    }
}
