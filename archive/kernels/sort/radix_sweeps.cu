/*---
op = "sort"
note = "a stable radix sort of long rows, eight bits a sweep, one launch each: a block ranks a tile of a row in shared memory by ballots, learns from the tiles before it how many keys with each digit they hold (a count and its mark are one word; blocks draw tickets), and writes runs of pairs of key and index"
when = "cols >= 1024 and rows * cols < 1073741824"
specialize = ["cols", "tiles", "passes", "rows"]

[knobs]
THREADS = [512, 256, 384]
ITEMS = [12, 8, 16]
BLOCKS = [2, 1, 3]
MASKS = [0, 1]

[let]
passes = "itemsize(x)"
tiles = "ceil_div(cols, THREADS * ITEMS)"
parts = "ceil_div(cols, 8192)"

[workspace]
found = { shape = ["rows", "passes", 256], dtype = "int32", zero = true }
tickets = { shape = [4], dtype = "int32", zero = true }
state = { shape = ["passes", "rows", "tiles", 256], dtype = "int32", zero = true }
one = { shape = ["rows", "cols"], dtype = "int64" }
two = { shape = ["(passes // 4) * rows * cols + 1"], dtype = "int64" }

[[launch]]
entry = "count_digits"
grid = ["rows * parts"]
block = [512]
args = ["x", "found", "parts"]

[[launch]]
entry = "sweep_first"
grid = ["rows * tiles"]
block = ["THREADS"]
shared = "THREADS * ITEMS * 8"
args = ["x", "one", "found", "state", "tickets"]

[[launch]]
entry = "sweep_second"
grid = ["rows * tiles * (passes // 4)"]
block = ["THREADS"]
shared = "THREADS * ITEMS * 8"
args = ["one", "two", "found", "state", "tickets"]

[[launch]]
entry = "sweep_third"
grid = ["rows * tiles * (passes // 4)"]
block = ["THREADS"]
shared = "THREADS * ITEMS * 8"
args = ["two", "one", "found", "state", "tickets"]

[[launch]]
entry = "sweep_last"
grid = ["rows * tiles"]
block = ["THREADS"]
shared = "THREADS * ITEMS * 8"
args = ["one", "x", "values", "indices", "found", "state", "tickets"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <int BYTES> struct Bits { using Raw = unsigned short; };
template <> struct Bits<4> { using Raw = unsigned; };
using Raw = Bits<sizeof(x_t)>::Raw;
constexpr Raw SIGN = Raw(1) << (sizeof(x_t) * 8 - 1), ALL = Raw(~Raw(0)), ZERO = SIGN;
constexpr int WARPS = THREADS / 32, TILE = THREADS * ITEMS, DIGITS = 256, PAIRS = 128;  // two digits share a word
constexpr unsigned OF_TILE = 1u << 30, OF_ALL = 1u << 31, COUNT = OF_TILE - 1;  // a count of the tile, or of all up to it
extern __shared__ uint2 memory[];

// Orders as the numbers do: -0.0 is the equal of 0.0, NaN comes last.
__device__ __forceinline__ Raw key_of(Raw bits) {
    const float value = float(*reinterpret_cast<const x_t*>(&bits));
    if (value != value) return ALL;
    if (value == 0.0f) return ZERO;
    return bits & SIGN ? Raw(~bits) : Raw(bits | SIGN);
}

extern "C" __global__ void __launch_bounds__(512)
count_digits(const x_t* __restrict__ x, int* found, int parts) {
    __shared__ int counts[passes][DIGITS];
    for (int at = threadIdx.x; at < passes * DIGITS; at += 512) (&counts[0][0])[at] = 0;
    __syncthreads();
    const int row = blockIdx.x / parts, part = blockIdx.x % parts;
    const Raw* const from = reinterpret_cast<const Raw*>(x) + (long long)row * cols;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        Raw bits[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int col = part * 8192 + (half * 8 + i) * 512 + threadIdx.x;
            bits[i] = col < cols ? from[col] : Raw(0);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (part * 8192 + (half * 8 + i) * 512 + threadIdx.x >= cols) break;
            const unsigned key = key_of(bits[i]);
#pragma unroll
            for (int pass = 0; pass < passes; ++pass) atomicAdd(&counts[pass][key >> 8 * pass & 255], 1);
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < passes * DIGITS; at += 512) {
        const int count = (&counts[0][0])[at];
        if (count > 0) atomicAdd(found + (long long)row * passes * DIGITS + at, count);
    }
}

// The lanes whose digit is the same, in one of two ways: by a ballot for each bit, or by bits that meet in shared memory.
__device__ __forceinline__ unsigned peers_of(unsigned digit, unsigned* masks) {
#if MASKS
    atomicOr(masks + digit, 1u << threadIdx.x % 32);
    __syncwarp();
    return masks[digit];
#else
    unsigned peers = 0xffffffffu;
#pragma unroll
    for (int b = 0; b < 8; ++b) {
        const int ones = int(digit << 31 - b) >> 31;  // all bits, or none
        peers &= ~(__ballot_sync(0xffffffffu, ones < 0) ^ unsigned(ones));
    }
    return peers;
#endif
}

// The sum over lower lanes.
__device__ __forceinline__ int before_lane(int value) {
    int upto = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, upto, step);
        if (threadIdx.x % 32 >= step) upto += other;
    }
    return upto - value;
}

// How many keys with this digit the tiles before hold; `mine` is the tile's own word.
__device__ __forceinline__ unsigned before_tile(int* mine, int tile, unsigned count) {
    __threadfence();
    atomicExch(reinterpret_cast<unsigned*>(mine), (tile == 0 ? OF_ALL : OF_TILE) | count);
    const volatile unsigned* const words = reinterpret_cast<const volatile unsigned*>(mine);
    unsigned sum = 0;
    int back = 1;
    while (back <= tile) {
        unsigned some[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) some[k] = back + k <= tile ? words[-(back + k) * DIGITS] : OF_ALL;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            if (back > tile) break;
            while (some[k] == 0) some[k] = words[-back * DIGITS];
            sum += some[k] & COUNT;
            back = some[k] & OF_ALL ? tile + 1 : back + 1;
        }
    }
    if (tile > 0) atomicExch(reinterpret_cast<unsigned*>(mine), OF_ALL | (sum + count));
    return sum;
}

template <int PASS, class Load, class Store>
__device__ __forceinline__ void sweep(const int* __restrict__ found, int* state, int* tickets, Load load, Store store) {
    __shared__ int ticket, starts[DIGITS], offsets[DIGITS];
    unsigned* const counts = reinterpret_cast<unsigned*>(memory);  // until keys take its place
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned short* const mine = reinterpret_cast<unsigned short*>(counts + warp * PAIRS);
    unsigned* const masks = counts + (WARPS + 2 * warp) * PAIRS;
    for (int at = lane; MASKS && at < 2 * PAIRS; at += 32) masks[at] = 0;
    const unsigned below = (1u << lane) - 1;
    if (threadIdx.x == 0) ticket = atomicAdd(tickets + PASS, 1);
#pragma unroll
    for (int p = 0; p < PAIRS / 32; ++p) counts[warp * PAIRS + p * 32 + lane] = 0;
    __syncthreads();
    const int row = ticket / tiles, tile = ticket % tiles;
    uint2 pairs[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {  // a warp holds neighbours, in the order of i
        const int col = tile * TILE + (warp * ITEMS + i) * 32 + lane;
        pairs[i] = make_uint2(0xffffffffu, 0);
        if (col < cols) pairs[i] = load(row, col);
    }
    int place[ITEMS];  // among the warp's keys with the same digit, then in the tile
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned digit = pairs[i].x >> 8 * PASS & 255, peers = peers_of(digit, masks);
        const int before = mine[digit], ahead = __popc(peers & below);
        __syncwarp();
        if (ahead == 0) {
            mine[digit] = (unsigned short)(before + __popc(peers));
            if (MASKS) masks[digit] = 0;
        }
        __syncwarp();
        place[i] = before + ahead;
    }
    __syncthreads();
    if (threadIdx.x < PAIRS) {  // both halves at once: no sum exceeds 16 bits
        unsigned sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const unsigned count = counts[w * PAIRS + threadIdx.x];
            counts[w * PAIRS + threadIdx.x] = sum;
            sum += count;
        }
        starts[2 * threadIdx.x] = int(sum & 0xffffu), starts[2 * threadIdx.x + 1] = int(sum >> 16);
    }
    __syncthreads();
    if (threadIdx.x < DIGITS) {
        int* const word = state + (((long long)PASS * rows + row) * tiles + tile) * DIGITS + threadIdx.x;
        offsets[threadIdx.x] = int(before_tile(word, tile, unsigned(starts[threadIdx.x])));
    }
    __syncthreads();
    if (warp < 2) {  // where digits begin: in the tile, and in the row
        const int* const of = warp == 0 ? starts : found + ((long long)row * passes + PASS) * DIGITS;
        int some[8], sum = 0;
#pragma unroll
        for (int p = 0; p < 8; ++p) some[p] = of[lane * 8 + p], sum += some[p];
        int start = before_lane(sum);
#pragma unroll
        for (int p = 0; p < 8; ++p) {
            if (warp == 0) starts[lane * 8 + p] = start;
            else offsets[lane * 8 + p] += start;
            start += some[p];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned digit = pairs[i].x >> 8 * PASS & 255;
        place[i] += starts[digit] + mine[digit];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) memory[place[i]] = pairs[i];
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < ITEMS; ++i) {
        const int at = i * THREADS + threadIdx.x;
        const uint2 pair = memory[at];
        const unsigned digit = pair.x >> 8 * PASS & 255;
        const int to = offsets[digit] + at - starts[digit];
        if (to < cols) store(row, to, pair);  // what lies beyond the row is last
    }
}

struct OfPairs {
    uint2* pairs;
    __device__ __forceinline__ uint2 operator()(int row, int col) const { return pairs[(long long)row * cols + col]; }
    __device__ __forceinline__ void operator()(int row, int col, uint2 pair) const { pairs[(long long)row * cols + col] = pair; }
};

struct OfNumbers {
    const Raw* x;
    __device__ __forceinline__ uint2 operator()(int row, int col) const {
        return make_uint2(sizeof(Raw) == 4 ? key_of(x[(long long)row * cols + col]) : 0xffff0000u | key_of(x[(long long)row * cols + col]), col);
    }
};

struct Results {
    const Raw* x;
    Raw* values;
    long long* indices;
    __device__ __forceinline__ void operator()(int row, int col, uint2 pair) const {
        const Raw key = Raw(pair.x);
        Raw bits = key & SIGN ? Raw(key ^ SIGN) : Raw(~key);
        const long long first = (long long)row * cols;
        if (key == ZERO || key == ALL) bits = x[first + pair.y];  // the sign of a zero, the bits of NaN
        __stcs(values + first + col, bits);
        __stcs(indices + first + col, (long long)pair.y);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sweep_first(const x_t* __restrict__ x, long long* one, const int* __restrict__ found, int* state, int* tickets) {
    sweep<0>(found, state, tickets, OfNumbers{reinterpret_cast<const Raw*>(x)}, OfPairs{reinterpret_cast<uint2*>(one)});
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sweep_second(const long long* one, long long* two, const int* __restrict__ found, int* state, int* tickets) {
    sweep<1>(found, state, tickets, OfPairs{reinterpret_cast<uint2*>(const_cast<long long*>(one))}, OfPairs{reinterpret_cast<uint2*>(two)});
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sweep_third(const long long* two, long long* one, const int* __restrict__ found, int* state, int* tickets) {
    sweep<(passes > 2 ? 2 : 0)>(found, state, tickets, OfPairs{reinterpret_cast<uint2*>(const_cast<long long*>(two))}, OfPairs{reinterpret_cast<uint2*>(one)});
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sweep_last(const long long* one, const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices,
           const int* __restrict__ found, int* state, int* tickets) {
    sweep<passes - 1>(found, state, tickets, OfPairs{reinterpret_cast<uint2*>(const_cast<long long*>(one))},
                      Results{reinterpret_cast<const Raw*>(x), reinterpret_cast<Raw*>(values), indices});
}
