/*---
op = "embedding_backward"
note = "for few tokens: a block per multiprocessor owns every so many-th row and looks through all indices at once, each warp its own stretch; by counts per warp and row the tokens of its rows are listed in one order in shared memory, warps add equal stretches of the list, whatever rows they are of, and what several warps have of a row meets in shared memory; one launch, no atomics"
when = "tokens <= 24576 and vocab <= 8192 and dim <= 2048"
specialize = ["dim", "pieces", "parts", "groups", "own_rows", "turns", "together", "tokens", "vocab"]
require = ["turns <= 16"]

[knobs]
WARPS = [32, 16, 24]
SPREAD = [1, 2]
PIECES = [10, 3, 5]
LOADS = [30, 20, 40]

[let]
parts = "ceil_div(dim, 32 * PIECES)"
pieces = "ceil_div(dim, 32 * parts)"
groups = "min(vocab, max(1, SPREAD * sms // parts))"
own_rows = "ceil_div(vocab, groups)"
turns = "ceil_div(tokens, 64 * WARPS)"
together = "max(2, LOADS // pieces)"

[[launch]]
entry = "add_lists"
grid = ["groups * parts"]
block = ["32 * WARPS"]
shared = "tokens * 4 + 2 * WARPS * 32 * pieces * 4 + WARPS * own_rows * 4"
args = ["grad_out", "indices", "grad_weight"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 32 * pieces;
extern __shared__ int memory[];

// Which row of the block's own an index is, or -1. Blocks own every so many-th row, because low ones may be frequent.
__device__ __forceinline__ int own_row(long long index, int group) { return int(index) % groups == group ? int(index) / groups : -1; }

struct Sources {
    const long long* indices;
    int group, lane, begin;  // of the warp

    // Calls `f` with the source and the row of each lane, for each two times 32 sources of the warp among which are some of the block's.
    template <class F> __device__ __forceinline__ void each(unsigned of_block, F f) const {
        for (unsigned left = __reduce_or_sync(0xffffffffu, of_block); left != 0; left &= left - 1) {
            const int bit = __ffs(left) - 1;
            const int source = begin + bit / 2 * 64 + 2 * lane + bit % 2;
            f(source, of_block >> bit & 1 ? own_row(indices[source], group) : -1);
        }
    }
};

struct Sum {
    float sum[pieces], few[pieces];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < pieces; ++i) sum[i] = few[i] = 0.0f;
    }
    __device__ __forceinline__ void fold() {
#pragma unroll
        for (int i = 0; i < pieces; ++i) sum[i] += few[i], few[i] = 0.0f;
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS)
add_lists(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices, grad_weight_t* __restrict__ grad_weight) {
    int* const list = memory;
    float* const met = reinterpret_cast<float*>(memory + tokens);  // of each warp: of its first row, and of its last
    int* const places = memory + tokens + 2 * WARPS * WIDTH;  // by warp and row
    __shared__ int starts[own_rows + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = blockIdx.x / parts, first = blockIdx.x % parts * WIDTH;
    const Sources sources{indices, group, lane, warp * turns * 64};
    int* const mine = places + warp * own_rows;
    for (int row = lane; row < own_rows; row += 32) mine[row] = 0;
    unsigned of_block = 0;  // bits of the lane's sources
    static_assert(turns <= 16, "two bits a turn");
#pragma unroll 5
    for (int turn = 0; turn < turns; ++turn) {
        const int source = sources.begin + turn * 64 + 2 * lane;
        longlong2 some = make_longlong2(-1, -1);
        if (source + 1 < tokens) some = *reinterpret_cast<const longlong2*>(indices + source);
        else if (source < tokens) some.x = indices[source];
        if (some.x >= 0 && own_row(some.x, group) >= 0) of_block |= 1u << 2 * turn;
        if (some.y >= 0 && own_row(some.y, group) >= 0) of_block |= 2u << 2 * turn;
    }
    __syncwarp();
    sources.each(of_block, [&](int, int row) {
        const unsigned peers = __match_any_sync(0xffffffffu, row);
        if (row >= 0 && __ffs(peers) - 1 == lane) mine[row] += __popc(peers);
        __syncwarp();
    });
    __syncthreads();
    for (int row = warp; row < own_rows; row += WARPS) {  // a warp per row: the counts of lower warps
        int count = lane < WARPS ? places[lane * own_rows + row] : 0;
        const int own = count;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, count, step);
            if (lane >= step) count += other;
        }
        if (lane < WARPS) places[lane * own_rows + row] = count - own;
        if (lane == 31) starts[row + 1] = count;
    }
    if (threadIdx.x == 0) starts[0] = 0;
    __syncthreads();
    if (warp == 0) {  // where rows begin
        int before = 0;
        for (int begin = 0; begin < own_rows; begin += 32) {
            int upto = begin + lane < own_rows ? starts[begin + lane + 1] : 0;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(0xffffffffu, upto, step);
                if (lane >= step) upto += other;
            }
            if (begin + lane < own_rows) starts[begin + lane + 1] = before + upto;
            before += __shfl_sync(0xffffffffu, upto, 31);
        }
    }
    __syncthreads();
    sources.each(of_block, [&](int source, int row) {
        const unsigned peers = __match_any_sync(0xffffffffu, row);
        const int place = row >= 0 ? starts[row] + mine[row] + __popc(peers & (1u << lane) - 1) : 0;
        __syncwarp();
        if (row >= 0) {
            list[place] = source;
            if (__ffs(peers) - 1 == lane) mine[row] += __popc(peers);
        }
        __syncwarp();
    });
    __syncthreads();
    const int total = starts[own_rows], share = (total + WARPS - 1) / WARPS;
    const int begin = min(warp * share, total), end = min(begin + share, total);
    const auto put = [&](int row, const float (&sum)[pieces]) {  // a row is done
        const long long start = ((long long)row * groups + group) * dim;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int col = first + 32 * i + lane;
            if (col < dim) grad_weight[start + col] = grad_weight_t(sum[i]);
        }
    };
    int row = 0;
    if (begin < end) {
        while (starts[row + 1] <= begin) ++row;
        Sum sum;
        sum.clear();
        const auto flush = [&] {
            sum.fold();
            if (starts[row] >= begin && starts[row + 1] <= end) put(row, sum.sum);
            else {
                float* const to = met + (2 * warp + (starts[row] < begin ? 0 : 1)) * WIDTH;
#pragma unroll
                for (int i = 0; i < pieces; ++i) to[32 * i + lane] = sum.sum[i];
            }
            sum.clear();
        };
        for (int at = begin; at < end; at += together) {
            grad_out_t held[together][pieces];
#pragma unroll
            for (int t = 0; t < together; ++t) {
                if (at + t >= end) break;
                const grad_out_t* const from = grad_out + (long long)list[at + t] * dim + first + lane;
#pragma unroll
                for (int i = 0; i < pieces; ++i) {
                    if (first + 32 * i + lane < dim) held[t][i] = from[32 * i];
                    else held[t][i] = grad_out_t(0.0f);
                }
            }
#pragma unroll
            for (int t = 0; t < together; ++t) {
                if (at + t >= end) break;
                if (at + t >= starts[row + 1]) {
                    flush();
                    do ++row; while (starts[row + 1] <= at + t);
                }
#pragma unroll
                for (int i = 0; i < pieces; ++i) sum.few[i] += float(held[t][i]);
            }
            sum.fold();
        }
        flush();
    }
    __syncthreads();
    for (int its = warp; its < own_rows; its += WARPS) {  // rows of several warps, and of none
        if (its * groups + group >= vocab) break;
        const int from = starts[its], to = starts[its + 1];
        const int lowest = from < to ? from / share : 0, highest = from < to ? (to - 1) / share : 0;
        if (from < to && lowest == highest) continue;
        float sum[pieces];
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            double all = 0.0;
            if (from < to) {
                all = met[(2 * lowest + 1) * WIDTH + 32 * i + lane];
                for (int w = lowest + 1; w <= highest; ++w) all += met[2 * w * WIDTH + 32 * i + lane];
            }
            sum[i] = float(all);
        }
        put(its, sum);
    }
}
