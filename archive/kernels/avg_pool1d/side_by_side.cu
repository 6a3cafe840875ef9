/*---
op = "avg_pool1d"
note = "neighbouring threads make neighbouring outputs, so that loads and stores lie side by side at any width; each makes several, a block's threads apart, and has the windows of all in registers before the first use; a window that fills its places of a row comes by one load"
when = "kernel <= 32 and l < 1073741824"
specialize = ["kernel", "stride", "padding", "l", "ol", "total"]

[knobs]
OUTPUTS = [4, 1, 2, 8]
THREADS = [256, 128]

[let]
total = "n * c * ol"

[[launch]]
entry = "pool"
grid = ["ceil_div(total, THREADS * OUTPUTS)"]
block = ["THREADS"]
args = ["x", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int D = 1, H = 1, W = l, OD = 1, OH = 1, OW = ol;
constexpr int KZ = 1, SZ = 1, PZ = 0;  // kernel, stride and padding between layers
constexpr int KY = 1, SY = 1, PY = 0;  // between rows
constexpr int WINDOW = KZ * KY * kernel, PLACE = OD * OH * OW;
// A window's places of a row are one aligned load.
constexpr bool WHOLE = padding == 0 && kernel == stride && W % kernel == 0 && kernel <= 8 && (kernel & (kernel - 1)) == 0 && kernel * sizeof(x_t) <= 16;
constexpr int TOGETHER = WINDOW * OUTPUTS <= 64 ? OUTPUTS : 1;
template <bool LARGE> struct Index { using type = int; };
template <> struct Index<true> { using type = long long; };
using index = Index<(total > 2000000000)>::type;
constexpr int LINE = WHOLE ? kernel : 1;
struct alignas(sizeof(x_t) * LINE) Line { x_t at[LINE]; };

struct Place { index map; int z, y, x; };

__device__ __forceinline__ Place place_of(index at) {
    const int place = int(at % PLACE);
    return Place{at / PLACE, place / (OH * OW) * SZ - PZ, place / OW % OH * SY - PY, place % OW * stride - padding};
}

__device__ __forceinline__ void fetch(x_t (&to)[WINDOW], const x_t* __restrict__ x, const Place& place) {
    const x_t* const from = x + (long long)place.map * (D * H * W);
#pragma unroll
    for (int a = 0; a < KZ; ++a) {
#pragma unroll
        for (int b = 0; b < KY; ++b) {
            const int z = place.z + a, y = place.y + b;
            const bool inside = (PZ == 0 || (z >= 0 && z < D)) && (PY == 0 || (y >= 0 && y < H));
            const int row = (z * H + y) * W;
            if constexpr (WHOLE) {
                const Line held = *reinterpret_cast<const Line*>(from + row + place.x);
#pragma unroll
                for (int e = 0; e < kernel; ++e) to[(a * KY + b) * kernel + e] = held.at[e % LINE];
            } else {
#pragma unroll
                for (int e = 0; e < kernel; ++e) {
                    const int col = place.x + e;
                    to[(a * KY + b) * kernel + e] = x_t(0.0f);
                    if (inside && (padding == 0 || (col >= 0 && col < W))) to[(a * KY + b) * kernel + e] = from[row + col];
                }
            }
        }
    }
}

__device__ __forceinline__ void finish(out_t* __restrict__ out, const x_t (&held)[WINDOW]) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WINDOW; ++w) sum += float(held[w]);
    if constexpr ((WINDOW & (WINDOW - 1)) == 0) *out = out_t(sum * (1.0f / WINDOW));
    else *out = out_t(sum / WINDOW);
}

extern "C" __global__ void __launch_bounds__(THREADS)
pool(const x_t* __restrict__ x, out_t* __restrict__ out) {
    const index first = (index)blockIdx.x * (THREADS * OUTPUTS) + threadIdx.x;
#pragma unroll 1
    for (int begin = 0; begin < OUTPUTS; begin += TOGETHER) {
        x_t held[TOGETHER][WINDOW];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            const index at = first + (begin + i) * THREADS;
            if (at < total) fetch(held[i], x, place_of(at));
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            const index at = first + (begin + i) * THREADS;
            if (at < total) finish(out + at, held[i]);
        }
    }
}
