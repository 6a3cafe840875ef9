/*---
op = "scatter_add"
note = "each source enters itself into one of 32 slots of its row; then a warp per row and long stretch of columns, so that what it must know of the row is read for kilobytes, adds the sources of its slots in ascending order, many loads of 16 bytes in flight; the few rows with more are listed, and blocks of their own look through all indices for them, many at once; no float atomics, one order"
specialize = ["dim", "vec", "pieces", "parts", "hub_blocks"]
require = ["WARPS * 32 * vec * 8 <= 49152"]

[knobs]
WARPS = [8, 4, 16]
VECTORS = [2, 1, 4]
TOGETHER = [4, 2, 8]
HUB_BLOCKS = [132, 264]

[let]
full = "16 // itemsize(src)"
vec = "max(1, full * (1 - min(1, dim % full)))"
pieces = "min(VECTORS * (full // vec), ceil_div(dim, 32 * vec))"
parts = "ceil_div(dim, 32 * vec * pieces)"
hub_blocks = "HUB_BLOCKS"

[workspace]
counts = { shape = ["rows + 1"], dtype = "int32", zero = true }
slots = { shape = ["rows", 32], dtype = "int32" }
hubs = { shape = ["count // 32 + 1"], dtype = "int32" }

[[launch]]
entry = "enter"
grid = ["ceil_div(count, 256)"]
block = [256]
args = ["indices", "counts", "slots", "hubs", "count", "rows"]

[[launch]]
entry = "add_up"
grid = ["hub_blocks + ceil_div(rows * parts, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "src", "indices", "counts", "slots", "hubs", "out", "count", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int SLOTS = 32, WIDTH = 32 * vec * pieces, HUB_WIDTH = 32 * vec, HUB_PARTS = (dim + HUB_WIDTH - 1) / HUB_WIDTH;
struct alignas(sizeof(src_t) * vec) Vec { src_t at[vec]; };

extern "C" __global__ void __launch_bounds__(256)
enter(const long long* __restrict__ indices, int* counts, int* slots, int* hubs, int sources, int rows) {
    const int source = blockIdx.x * 256 + threadIdx.x;
    if (source >= sources) return;
    const long long row = indices[source];
    const int place = atomicAdd(counts + row, 1);
    if (place < SLOTS) slots[row * SLOTS + place] = source;
    else if (place == SLOTS) hubs[atomicAdd(counts + rows, 1)] = int(row);
}

template <int N> __device__ __forceinline__ void fetch(Vec (&into)[N], const src_t* __restrict__ src, int source, int first) {
    const src_t* from = src + (long long)source * dim;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int col = first + 32 * vec * i;
        if (col < dim) into[i] = *reinterpret_cast<const Vec*>(from + col);
        else into[i] = Vec{};
    }
}

template <int N> __device__ __forceinline__ void take(float (&sum)[N][vec], const Vec (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int e = 0; e < vec; ++e) sum[i][e] += float(from[i].at[e]);
    }
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ void store(out_t* to, const float (&sum)[pieces][vec], int first) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int col = first + 32 * vec * i;
        Vec result;
#pragma unroll
        for (int e = 0; e + 1 < vec; e += 2) put(&result.at[e], sum[i][e], sum[i][e + 1]);
        if constexpr (vec == 1) result.at[0] = out_t(sum[i][0]);
        if (col >= dim) continue;
        if constexpr (sizeof(Vec) == 16) __stcs(reinterpret_cast<uint4*>(to + col), *reinterpret_cast<const uint4*>(&result));
        else *reinterpret_cast<Vec*>(to + col) = result;
    }
}

// A row with more sources than slots: each warp looks through its share of the indices, in order.
__device__ __forceinline__ void add_hub(const x_t* x, const src_t* src, const long long* indices, out_t* to, int row, int part,
                        int sources, double (&met)[WARPS][HUB_WIDTH]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = part * HUB_WIDTH + lane * vec;
    constexpr int AT_ONCE = 8;  // loads of indices on their way
    const int share = (sources + 32 * AT_ONCE * WARPS - 1) / (32 * AT_ONCE * WARPS) * (32 * AT_ONCE);
    double total[1][vec] = {};
    for (int begin = warp * share; begin < min(sources, (warp + 1) * share); begin += 32 * AT_ONCE) {
        long long found[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            found[i] = -1;
            if (begin + 32 * i + lane < sources) found[i] = indices[begin + 32 * i + lane];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            unsigned own = __ballot_sync(0xffffffffu, found[i] == row);
            while (own != 0) {
                Vec held[TOGETHER][1];
                float sum[1][vec] = {};
#pragma unroll
                for (int t = 0; t < TOGETHER; ++t) {
                    held[t][0] = Vec{};
                    if (own != 0) fetch(held[t], src, begin + 32 * i + __ffs(own) - 1, first);
                    own &= own - 1;
                }
#pragma unroll
                for (int t = 0; t < TOGETHER; ++t) take(sum, held[t]);
#pragma unroll
                for (int e = 0; e < vec; ++e) total[0][e] += double(sum[0][e]);
            }
        }
    }
    __syncthreads();  // what was met before has been read
#pragma unroll
    for (int i = 0; i < 1; ++i) {
#pragma unroll
        for (int e = 0; e < vec; ++e) met[warp][(i * 32 + lane) * vec + e] = total[i][e];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < HUB_WIDTH; at += 32 * WARPS) {
        if (part * HUB_WIDTH + at >= dim) break;
        double sum = double(float(x[part * HUB_WIDTH + at]));
        for (int w = 0; w < WARPS; ++w) sum += met[w][at];
        to[part * HUB_WIDTH + at] = out_t(float(sum));
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, WARPS < 16 ? 2 : 1)
add_up(const x_t* __restrict__ x, const src_t* __restrict__ src, const long long* __restrict__ indices, const int* __restrict__ counts,
       const int* __restrict__ slots, const int* __restrict__ hubs, out_t* __restrict__ out, int sources,
       int rows) {
    __shared__ double met[WARPS][HUB_WIDTH];
    if (blockIdx.x < hub_blocks) {
        const long long tasks = (long long)counts[rows] * HUB_PARTS;
        for (long long task = blockIdx.x; task < tasks; task += hub_blocks) {
            const int row = hubs[task / HUB_PARTS];
            const long long start = (long long)row * dim;
            add_hub(x + start, src, indices, out + start, row, int(task % HUB_PARTS), sources, met);
        }
        return;
    }
    const int lane = threadIdx.x % 32;
    const long long task = (long long)(blockIdx.x - hub_blocks) * WARPS + threadIdx.x / 32, row = task / parts;
    if (row >= rows) return;
    const int count = counts[row], first = int(task % parts) * WIDTH + lane * vec;
    if (count > SLOTS) return;
    int source = lane < count ? slots[row * SLOTS + lane] : INT_MAX;
    float sum[pieces][vec] = {};
    Vec own[pieces];
    fetch(own, x, int(row), first);
    for (int done = 0; done < count; done += TOGETHER) {
        Vec held[TOGETHER][pieces];
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
            const int next = done + t < count ? __reduce_min_sync(0xffffffffu, source) : INT_MAX;
            if (next == INT_MAX) {
#pragma unroll
                for (int i = 0; i < pieces; ++i) held[t][i] = Vec{};
            } else {
                fetch(held[t], src, next, first);
                if (source == next) source = INT_MAX;
            }
        }
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) take(sum, held[t]);
    }
    take(sum, own);
    store(out + row * dim, sum, first);
}
