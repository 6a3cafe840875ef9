/*---
op = "sort"
note = "a stable radix sort of a row by one block, eight bits a pass: lanes with the same digit find each other by ballots, warps count in shared memory, keys and 16-bit indices move through shared memory, so that x is read once and only results are written; of 16-bit values key and index are one word and two passes suffice"
when = "cols <= 16384"
specialize = ["cols", "threads", "items"]
require = ["items <= 32"]

[knobs]
THREADS = [512, 128, 256, 1024]
ITEMS = [8, 4, 12, 16]
BLOCKS = [2, 1, 3, 4]
MASKS = [0, 1]

[let]
threads = "min(THREADS, 32 * ceil_div(cols, 32 * ITEMS))"
items = "ceil_div(cols, threads)"
places = "threads * items"

[[launch]]
entry = "sort_rows"
grid = ["rows"]
block = ["threads"]
shared = "places * 4 + places * 2 * (itemsize(x) // 4) + threads // 32 * (512 + 1024 * MASKS)"
args = ["x", "values", "indices"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <int BYTES> struct Bits { using Raw = unsigned short; };
template <> struct Bits<4> { using Raw = unsigned; };
using Raw = Bits<sizeof(x_t)>::Raw;
constexpr bool PACKED = sizeof(x_t) == 2;  // a key above its index in one word
constexpr Raw SIGN = Raw(1) << (sizeof(x_t) * 8 - 1), ALL = Raw(~Raw(0)), ZERO = SIGN;
constexpr int WARPS = threads / 32, PLACES = threads * items, PAIRS = 128;  // two of the 256 digits share a word
extern __shared__ unsigned memory[];

// Orders as the numbers do: -0.0 is the equal of 0.0, NaN comes last.
__device__ __forceinline__ Raw key_of(Raw bits, float value) {
    if (value != value) return ALL;
    if (value == 0.0f) return ZERO;
    return bits & SIGN ? Raw(~bits) : Raw(bits | SIGN);
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

extern "C" __global__ void __launch_bounds__(threads, threads * BLOCKS <= 2048 ? BLOCKS : 1)
sort_rows(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices) {
    __shared__ unsigned totals[PAIRS];
    unsigned* const words = memory;
    unsigned short* const places = reinterpret_cast<unsigned short*>(memory + PLACES);
    unsigned* const counts = memory + PLACES + (PACKED ? 0 : PLACES / 2);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned short* const mine = reinterpret_cast<unsigned short*>(counts + warp * PAIRS);
    unsigned* const masks = counts + (WARPS + 2 * warp) * PAIRS;
    for (int at = lane; MASKS && at < 2 * PAIRS; at += 32) masks[at] = 0;
    const unsigned below = (1u << lane) - 1;
    const long long row = (long long)blockIdx.x * cols;
    const Raw* const from = reinterpret_cast<const Raw*>(x) + row;
    unsigned keys[items];
    int index[PACKED ? 1 : items];
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const int col = (warp * items + i) * 32 + lane;  // a warp holds neighbours, in the order of i
        unsigned key = ALL;
        if (col < cols) {
            const Raw bits = from[col];
            key = key_of(bits, float(*reinterpret_cast<const x_t*>(&bits)));
        }
        if constexpr (PACKED) keys[i] = key << 16 | unsigned(col);
        else keys[i] = key, index[i] = col;
    }
#pragma unroll
    for (int shift = PACKED ? 16 : 0; shift < 32; shift += 8) {
#pragma unroll
        for (int p = 0; p < PAIRS / 32; ++p) counts[warp * PAIRS + p * 32 + lane] = 0;
        __syncwarp();
        int rank[items];  // among the warp's keys with the same digit
#pragma unroll
        for (int i = 0; i < items; ++i) {
            const unsigned digit = keys[i] >> shift & 255, peers = peers_of(digit, masks);
            const int before = mine[digit], ahead = __popc(peers & below);
            __syncwarp();
            if (ahead == 0) {
                mine[digit] = (unsigned short)(before + __popc(peers));
                if (MASKS) masks[digit] = 0;
            }
            __syncwarp();
            rank[i] = before + ahead;
        }
        __syncthreads();
        for (int pair = threadIdx.x; pair < PAIRS; pair += threads) {  // both halves at once: no sum exceeds 16 bits
            unsigned sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const unsigned count = counts[w * PAIRS + pair];
                counts[w * PAIRS + pair] = sum;
                sum += count;
            }
            totals[pair] = sum;
        }
        __syncthreads();
        if (warp == 0) {
            unsigned some[PAIRS / 32], sum = 0;
#pragma unroll
            for (int p = 0; p < PAIRS / 32; ++p) some[p] = totals[lane * (PAIRS / 32) + p], sum += (some[p] & 0xffffu) + (some[p] >> 16);
            unsigned upto = sum;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const unsigned other = __shfl_up_sync(0xffffffffu, upto, step);
                if (lane >= step) upto += other;
            }
            unsigned start = upto - sum;
#pragma unroll
            for (int p = 0; p < PAIRS / 32; ++p) {
                const unsigned low = some[p] & 0xffffu, high = some[p] >> 16;
                totals[lane * (PAIRS / 32) + p] = start | (start + low) << 16;
                start += low + high;
            }
        }
        __syncthreads();
        const unsigned short* const starts = reinterpret_cast<const unsigned short*>(totals);
#pragma unroll
        for (int i = 0; i < items; ++i) {
            const unsigned digit = keys[i] >> shift & 255;
            const int place = starts[digit] + mine[digit] + rank[i];
            words[place] = keys[i];
            if constexpr (!PACKED) places[place] = (unsigned short)index[i];
        }
        __syncthreads();
        if (shift < 24) {
#pragma unroll
            for (int i = 0; i < items; ++i) {
                const int place = (warp * items + i) * 32 + lane;
                keys[i] = words[place];
                if constexpr (!PACKED) index[i] = places[place];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const int place = i * threads + threadIdx.x;
        if (place >= cols) break;
        const unsigned word = words[place];
        const Raw key = Raw(PACKED ? word >> 16 : word);
        const int col = PACKED ? int(word & 0xffffu) : int(places[place]);
        Raw bits = key & SIGN ? Raw(key ^ SIGN) : Raw(~key);
        if (key == ZERO || key == ALL) bits = from[col];  // the sign of a zero, the bits of NaN
        reinterpret_cast<Raw*>(values)[row + place] = bits;
        indices[row + place] = col;
    }
}
