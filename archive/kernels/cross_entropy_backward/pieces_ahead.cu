/*---
op = "cross_entropy_backward"
note = "one launch: persistent blocks count the rows that are kept while their first loads are on the way, then go through pieces of rows, the loads of the next piece issued before this one is worked on; rows that are no multiple of 16 bytes come in whole aligned pieces; the target's column is corrected afterwards, so that no other value is compared with it"
specialize = ["vocab", "rows", "cps", "parts", "share", "blocks"]

[knobs]
THREADS = [256, 128, 512]
LOADS = [4, 2, 8]
PER_SM = [4, 2, 3, 6, 8]

[let]
full = "16 // itemsize(logits)"
cps = "ceil_div(vocab + min(1, vocab % full) * (full - 1), full)"
parts = "ceil_div(cps, THREADS * LOADS)"
share = "ceil_div(cps, parts)"
blocks = "min(rows * parts, sms * max(1, min(PER_SM, 2048 // THREADS)))"

[[launch]]
entry = "gradient_of_pieces"
grid = ["blocks"]
block = ["THREADS"]
args = ["grad_loss", "logits", "targets", "lse", "grad_logits", "ignore_index", "label_smoothing"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(logits_t);
constexpr bool ALIGNED = vocab % VEC == 0;
constexpr long long elements = (long long)rows * vocab;

union Pack {
    uint4 raw;
    logits_t at[VEC];
};

// Sixteen bytes of the logits: where they begin, and which of their values belong to the row.
struct Place {
    long long first;
    int begin, end;
};

__device__ __forceinline__ Place place(int row, int chunk) {
    const long long from = row * (long long)vocab;
    if constexpr (ALIGNED) return {from + chunk * VEC, 0, VEC};
    const long long first = (from / VEC + chunk) * VEC, end = from + vocab;
    return {first, int(max(from - first, 0ll)), int(min(max(end - first, 0ll), (long long)VEC))};
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(logits_t) == 2) return __expf(x);
    else return expf(x);
}

// What one thread has of a piece of a row, and what it must know of the row.
struct Piece {
    uint4 held[LOADS];
    int row, first, last;
    long long target;
    float lse;
};

__device__ __forceinline__ void read(Piece& to, int item, const logits_t* __restrict__ logits,
                                     const long long* __restrict__ targets, const float* __restrict__ lse) {
    to.row = item / parts, to.first = item % parts * share, to.last = min(to.first + share, cps);
    if (to.row >= rows) return;
    to.target = targets[to.row], to.lse = lse[to.row];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        const int chunk = to.first + i * THREADS + threadIdx.x;
        if (chunk >= to.last) continue;
        const Place where = place(to.row, chunk);
        if (ALIGNED || where.first + VEC <= elements) {
            if (where.begin < where.end) to.held[i] = __ldcs(reinterpret_cast<const uint4*>(logits + where.first));
        } else {  // nothing behind the end is read
            Pack some;
            some.raw = make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                if (j >= where.begin && j < where.end) some.at[j] = logits[where.first + j];
            }
            to.held[i] = some.raw;
        }
    }
}

__device__ __forceinline__ float count_kept(const long long* __restrict__ targets, long long ignore_index) {
    __shared__ int counts[THREADS / 32];
    int count = 0;
#pragma unroll 4
    for (int row = threadIdx.x; row < rows; row += THREADS) count += targets[row] != ignore_index;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
    __syncthreads();
    count = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) count += counts[warp];
    return float(count);
}

extern "C" __global__ void __launch_bounds__(THREADS)
gradient_of_pieces(const float* __restrict__ grad_loss, const logits_t* __restrict__ logits,
                   const long long* __restrict__ targets, const float* __restrict__ lse,
                   grad_logits_t* __restrict__ grad_logits, long long ignore_index, float label_smoothing) {
    Piece next;
    int item = blockIdx.x;
    read(next, item, logits, targets, lse);
    const float each = *grad_loss / count_kept(targets, ignore_index), even = label_smoothing / vocab;
    for (; item < rows * parts; item += blocks) {
        const Piece piece = next;
        read(next, item + blocks, logits, targets, lse);
        const float scale = piece.target == ignore_index ? 0.0f : each;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int chunk = piece.first + i * THREADS + threadIdx.x;
            if (chunk >= piece.last) continue;
            const Place where = place(piece.row, chunk);
            Pack some;
            some.raw = piece.held[i];
            float result[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) result[j] = (exp_of(float(some.at[j]) - piece.lse) - even) * scale;
            const long long off = piece.row * (long long)vocab + piece.target - where.first;
            if (off >= 0 && off < VEC) {
                // There expm1 has the 1 already taken off: rounded near 1, little would be left of the difference.
                const float log_prob = float(logits[where.first + off]) - piece.lse;
                const float value = (expm1f(log_prob) + (label_smoothing - even)) * scale;
#pragma unroll
                for (int j = 0; j < VEC; ++j) result[j] = j == int(off) ? value : result[j];
            }
            Pack made;
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&made.at[j], result[j], result[j + 1]);
            if (ALIGNED || (where.begin == 0 && where.end == VEC)) {
                __stcs(reinterpret_cast<uint4*>(grad_logits + where.first), made.raw);
            } else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    if (j >= where.begin && j < where.end) grad_logits[where.first + j] = made.at[j];
                }
            }
        }
    }
}
