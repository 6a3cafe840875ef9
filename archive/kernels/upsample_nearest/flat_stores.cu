/*---
op = "upsample_nearest"
note = "rows of any width: 16-byte stores side by side through the whole result; a thread finds the row and column of its first element by divisions by constants, counts on from there, and reads an element of the input wherever another one begins"
when = "ow < 1048576"
specialize = ["w", "ow", "factor"]

[knobs]
PACKS = [2, 1, 4]
THREADS = [256, 128, 512]

[let]
total = "batch * channels * oh * ow"

[[launch]]
entry = "repeat"
grid = ["ceil_div(ceil_div(total * itemsize(x), 16), THREADS * PACKS)"]
block = ["THREADS"]
args = ["x", "out", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Vec { x_t at[VEC]; };

extern "C" __global__ void __launch_bounds__(THREADS)
repeat(const x_t* __restrict__ x, out_t* __restrict__ out, long long total) {
    const long long vectors = total / VEC, first = (long long)blockIdx.x * (THREADS * PACKS);
    // A plane has a whole number of `factor` rows, so that rows can be counted through all of them.
    const long long line = first * VEC / ow;
    const unsigned begin = unsigned(first * VEC - line * ow);
    const long long above = line / factor;
    const unsigned within = unsigned(line - above * factor);
    const x_t* const rows = x + above * w;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const unsigned at = p * THREADS + threadIdx.x;
        if (first + at >= vectors) continue;
        const unsigned place = begin + at * VEC;
        unsigned row = within + place / ow, col = place % ow, part = col % factor;
        const x_t* from = rows + (long long)(row / factor) * w + col / factor;
        row %= factor;
        Vec result;
        x_t now = *from;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            result.at[e] = now;
            ++col, ++part;
            if (part == factor && e + 1 < VEC) {  // the next element, perhaps of the same row of the input once more
                part = 0, ++from;
                if (col == ow) {
                    col = 0;
                    if (++row == factor) row = 0;
                    else from -= w;
                }
                now = *from;
            }
        }
        reinterpret_cast<Vec*>(out)[first + at] = result;
    }
    const long long at = vectors * VEC + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && at < total) out[at] = x[at / ow / factor * w + at % ow / factor];
}
