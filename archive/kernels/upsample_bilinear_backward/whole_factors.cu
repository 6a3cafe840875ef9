/*---
op = "upsample_bilinear_backward"
note = "sizes that had been doubled, or made 4 or 8 times as large: all shares are constants; a thread reads up to 16 bytes of a row of grad_out and the few values on either side, adds them up across for its columns of grad_x at once, and walks down, each row being shared between two lines of grad_x in registers; mirrored values stand for those outside, no shared memory, no barriers"
when = "(ow == 2 * w or ow == 4 * w or ow == 8 * w) and oh * w == h * ow and oh * ow < 8388608"
specialize = ["h", "w", "oh", "ow", "body", "gaps", "bands", "chunks", "total"]

[knobs]
LINES = [16, 8, 32]
ROWS = [4, 2, 8]
THREADS = [128, 256]

[let]
factor = "ow // w"
vec = "min(16 // itemsize(grad_out), 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8)))"
body = "max(vec, factor)"
gaps = "max(1, ROWS // factor)"
bands = "ceil_div(h, LINES)"
chunks = "ow // body"
total = "batch * channels * bands * chunks"

[[launch]]
entry = "gather"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int FACTOR = ow / w, HALF = FACTOR / 2, BODY = body, COLS = BODY / FACTOR;
using index = decltype(total + 0);
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
struct Piece { Pack<grad_out_t, HALF> left; Pack<grad_out_t, BODY> middle; Pack<grad_out_t, HALF> right; };  // of a row

// In accesses as wide as possible: the compiler may split those of a struct.
template <class T> __device__ __forceinline__ T read(const void* from) {
    T result;
    if constexpr (sizeof(T) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < int(sizeof(T) / 16); ++i) {
            reinterpret_cast<uint4*>(&result)[i] = __ldg(static_cast<const uint4*>(from) + i);
        }
    } else if constexpr (sizeof(T) == 8) {
        *reinterpret_cast<uint2*>(&result) = __ldg(static_cast<const uint2*>(from));
    } else if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<unsigned*>(&result) = __ldg(static_cast<const unsigned*>(from));
    } else {
        *reinterpret_cast<unsigned short*>(&result) = __ldg(static_cast<const unsigned short*>(from));
    }
    return result;
}
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else if constexpr (sizeof(T) == 4) __stcs(static_cast<unsigned*>(to), *reinterpret_cast<const unsigned*>(&from));
    else *static_cast<T*>(to) = from;
}

extern "C" __global__ void __launch_bounds__(THREADS)
gather(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x) {
    const index at = (index)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int chunk = int(at % chunks), first = int(at / chunks % bands) * LINES, end = min(first + LINES, h);
    const long long map = at / chunks / bands;
    const grad_out_t* const from = grad_out + map * (oh * ow) + chunk * BODY;
    grad_x_t* to = grad_x + map * (h * w) + first * w + chunk * COLS;
    // Outside are the values inside, mirrored: read as they lie, with their shares in the opposite order.
    const bool begins = chunk == 0, ends = chunk == chunks - 1;
    const int before = begins ? 0 : -HALF, behind = ends ? BODY - HALF : BODY;
    float left[HALF], right[HALF];
#pragma unroll
    for (int t = 0; t < HALF; ++t) {
        const float rising = (t + 0.5f) / FACTOR, falling = (HALF - t - 0.5f) / FACTOR;
        left[t] = begins ? falling : rising, right[t] = ends ? rising : falling;
    }
    const auto fetch = [&](const grad_out_t* here) {
        return Piece{read<Pack<grad_out_t, HALF>>(here + before), read<Pack<grad_out_t, BODY>>(here),
                     read<Pack<grad_out_t, HALF>>(here + behind)};
    };
    float own[COLS] = {}, next[COLS] = {};
    // Adds a row, the one with this number of those between the line in `own` and the next.
    const auto add = [&](const Piece& piece, int part) {
        float value[BODY], sum[COLS] = {};
#pragma unroll
        for (int e = 0; e < BODY; ++e) value[e] = float(piece.middle.at[e]);
#pragma unroll
        for (int t = 0; t < HALF; ++t) {
            sum[0] = fmaf(left[t], float(piece.left.at[t]), sum[0]);
            sum[COLS - 1] = fmaf(right[t], float(piece.right.at[t]), sum[COLS - 1]);
        }
        const float far = (part + 0.5f) / FACTOR;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
#pragma unroll
            for (int t = 0; t < 2 * FACTOR; ++t) {
                const int e = c * FACTOR - HALF + t;
                const float share = (t < FACTOR ? t + 0.5f : 2 * FACTOR - t - 0.5f) / FACTOR;
                if (e >= 0 && e < BODY) sum[c] = fmaf(share, value[e], sum[c]);
            }
            own[c] = fmaf(1.0f - far, sum[c], own[c]);
            next[c] = fmaf(far, sum[c], next[c]);
        }
    };
    const auto finish = [&]() {  // the line in `own`
        Pack<grad_x_t, COLS> made;
#pragma unroll
        for (int c = 0; c < COLS; ++c) made.at[c] = grad_x_t(own[c]), own[c] = next[c], next[c] = 0.0f;
        write(to, made);
        to += w;
    };
    // Adds the rows between a line and the next, mirrored where they are outside.
    const auto add_between = [&](int line) {
        Piece held[FACTOR];
#pragma unroll
        for (int r = 0; r < FACTOR; ++r) {
            const int row = (line + 1) * FACTOR - HALF + r;
            held[r] = fetch(from + min(max(row, -1 - row), 2 * oh - 1 - row) * ow);
        }
#pragma unroll
        for (int r = 0; r < FACTOR; ++r) add(held[r], r);
    };
    add_between(first - 1);
#pragma unroll
    for (int c = 0; c < COLS; ++c) own[c] = next[c], next[c] = 0.0f;
    // Batches of rows; where one is added up, the row as far behind it is on its way. Not the rows below the last line.
    constexpr int BATCH = gaps * FACTOR;
    const int stop = min(end, h - 1);
    const grad_out_t* here = from + (first * FACTOR + HALF) * ow;
    int line = first;
    if (line + gaps <= stop) {
        Piece held[BATCH];
#pragma unroll
        for (int r = 0; r < BATCH; ++r) held[r] = fetch(here + r * ow);
#pragma unroll 1
        for (; line + gaps <= stop; line += gaps) {
            if (line + 2 * gaps <= stop) here += BATCH * ow;  // else, the last are read again and not used
#pragma unroll
            for (int r = 0; r < BATCH; ++r) {
                add(held[r], r % FACTOR);
                held[r] = fetch(here + r * ow);
                if (r % FACTOR == FACTOR - 1) finish();
            }
        }
    }
#pragma unroll 1
    for (; line < end; ++line) add_between(line), finish();
}
