/*---
op = "permute"
note = "for rows that are no whole 16-byte pieces: a block brings so many neighbouring positions with all their heads into shared memory that together they are, by cp.async; what a head has of them is one run of the output, which is written by whole 16-byte pieces wherever it begins"
when = "heads * dim <= 6400 and itemsize(x) <= 4"
specialize = ["seq", "heads", "dim", "high", "windows"]
require = ["high * heads * dim * itemsize(x) <= 225000"]

[knobs]
KILOBYTES = [50, 25, 100]
THREADS = [256, 128, 512]

[let]
full = "16 // itemsize(x)"
high = "full * max(1, KILOBYTES * 1024 // (heads * dim * 16))"
windows = "ceil_div(min(high, seq) * dim + full - 1, full)"

[[launch]]
entry = "permute_runs"
grid = ["ceil_div(batch * seq, high)"]
block = ["THREADS"]
shared = "high * heads * dim * itemsize(x)"
args = ["x", "out", "batch * seq"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <int BYTES> struct Bits { using Raw = unsigned short; };
template <> struct Bits<4> { using Raw = unsigned; };
using Raw = Bits<sizeof(x_t)>::Raw;
constexpr int VEC = 16 / sizeof(Raw), ROW = heads * dim;
extern __shared__ uint4 memory[];

union Pack {
    uint4 raw;
    Raw at[VEC];
};

__device__ __forceinline__ void fetch(uint4* to, const Raw* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS)
permute_runs(const x_t* __restrict__ x, out_t* __restrict__ out, long long rows) {
    Raw* const held = reinterpret_cast<Raw*>(memory);
    Raw* const results = reinterpret_cast<Raw*>(out);
    const long long first = (long long)blockIdx.x * high;
    const int own = int(min((long long)high, rows - first)), values = own * ROW;
    const Raw* const from = reinterpret_cast<const Raw*>(x) + first * ROW;
#pragma unroll 4
    for (int piece = threadIdx.x; piece < values / VEC; piece += THREADS) fetch(memory + piece, from + piece * VEC);
    for (int at = values / VEC * VEC + threadIdx.x; at < values; at += THREADS) held[at] = from[at];
    asm volatile("cp.async.commit_group;\ncp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int begin = 0; begin < own;) {  // the positions of one image after those of another
        const long long image = (first + begin) / seq;
        const int place = int(first + begin - image * seq), positions = min(own - begin, seq - place);
        for (int task = threadIdx.x; task < heads * windows; task += THREADS) {
            const int head = task / windows, window = task % windows;
            const long long start = ((image * heads + head) * seq + place) * dim, to = (start / VEC + window) * VEC;
            const int ahead = int(to - start), length = positions * dim;  // ahead of the run's beginning, or below zero
            if (ahead >= length) continue;
            int position = max(ahead, 0) / dim, col = max(ahead, 0) - position * dim;
            const Raw* at = held + (begin + position) * ROW + head * dim;
            Pack some;
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                if (ahead + j < 0 || ahead + j >= length) continue;
                some.at[j] = at[col];
                if (++col == dim) col = 0, at += ROW;
            }
            if (ahead >= 0 && ahead + VEC <= length) *reinterpret_cast<uint4*>(results + to) = some.raw;
            else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    if (ahead + j >= 0 && ahead + j < length) results[to + j] = some.at[j];
                }
            }
        }
        begin += positions;
    }
}
