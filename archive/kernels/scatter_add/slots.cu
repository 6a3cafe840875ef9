/*---
op = "scatter_add"
note = "each source enters itself into one of 32 slots of its row; then a warp per row and stretch of columns adds the sources of its slots in ascending order, 16 bytes a load, several sources in flight; the few rows with more are listed, and blocks of their own look through all indices for them; no float atomics, one order"
specialize = ["dim", "vec", "pieces", "parts", "hub_blocks"]
require = ["WARPS * 32 * vec * pieces * 8 <= 49152"]

[knobs]
WARPS = [8, 4, 16]
VECTORS = [1, 2]
TOGETHER = [4, 2, 8]
HUB_BLOCKS = [132, 264]

[let]
full = "16 // itemsize(src)"
vec = "max(1, full * (1 - min(1, dim % full)))"
pieces = "VECTORS * (full // vec)"
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

constexpr int SLOTS = 32, WIDTH = 32 * vec * pieces;
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

__device__ __forceinline__ void fetch(Vec (&into)[pieces], const src_t* __restrict__ src, int source, int first) {
    const src_t* from = src + (long long)source * dim;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int col = first + 32 * vec * i;
        if (col < dim) into[i] = *reinterpret_cast<const Vec*>(from + col);
        else into[i] = Vec{};
    }
}

__device__ __forceinline__ void take(float (&sum)[pieces][vec], const Vec (&from)[pieces]) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int e = 0; e < vec; ++e) sum[i][e] += float(from[i].at[e]);
    }
}

__device__ __forceinline__ void store(out_t* to, const float (&sum)[pieces][vec], int first) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int col = first + 32 * vec * i;
        Vec result;
#pragma unroll
        for (int e = 0; e < vec; ++e) result.at[e] = out_t(sum[i][e]);
        if (col < dim) *reinterpret_cast<Vec*>(to + col) = result;
    }
}

// A row with more sources than slots: each warp looks through its share of the indices, in order.
__device__ void add_hub(const x_t* x, const src_t* src, const long long* indices, out_t* to, int row, int part,
                        int sources, double (&met)[WARPS][WIDTH]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = part * WIDTH + lane * vec;
    const int share = (sources + 32 * WARPS - 1) / (32 * WARPS) * 32;
    double total[pieces][vec] = {};
    for (int begin = warp * share; begin < min(sources, (warp + 1) * share); begin += 32) {
        unsigned own = __ballot_sync(0xffffffffu, begin + lane < sources && indices[begin + lane] == row);
        while (own != 0) {
            Vec held[TOGETHER][pieces];
            float sum[pieces][vec] = {};
#pragma unroll
            for (int t = 0; t < TOGETHER; ++t) {
                if (own == 0) {
#pragma unroll
                    for (int i = 0; i < pieces; ++i) held[t][i] = Vec{};
                } else {
                    fetch(held[t], src, begin + __ffs(own) - 1, first);
                    own &= own - 1;
                }
            }
#pragma unroll
            for (int t = 0; t < TOGETHER; ++t) take(sum, held[t]);
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
#pragma unroll
                for (int e = 0; e < vec; ++e) total[i][e] += double(sum[i][e]);
            }
        }
    }
    __syncthreads();  // what was met before has been read
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int e = 0; e < vec; ++e) met[warp][(i * 32 + lane) * vec + e] = total[i][e];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < WIDTH; at += 32 * WARPS) {
        if (part * WIDTH + at >= dim) break;
        double sum = double(float(x[part * WIDTH + at]));
        for (int w = 0; w < WARPS; ++w) sum += met[w][at];
        to[part * WIDTH + at] = out_t(float(sum));
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
add_up(const x_t* __restrict__ x, const src_t* __restrict__ src, const long long* __restrict__ indices, const int* __restrict__ counts,
       const int* __restrict__ slots, const int* __restrict__ hubs, out_t* __restrict__ out, int sources,
       int rows) {
    __shared__ double met[WARPS][WIDTH];
    if (blockIdx.x < hub_blocks) {
        const long long tasks = (long long)counts[rows] * parts;
        for (long long task = blockIdx.x; task < tasks; task += hub_blocks) {
            const int row = hubs[task / parts];
            const long long start = (long long)row * dim;
            add_hub(x + start, src, indices, out + start, row, int(task % parts), sources, met);
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
