/*---
op = "upsample_bilinear_backward"
note = "the first row gets no share of what lies before its centre"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "upsample_bilinear_backward"
grid = ["ceil_div(batch * channels * h * w, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "batch * channels * h * w", "h", "w", "oh", "ow"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int PIECE = 8;  // lines are added up in such groups, for where an element is part of very many results

// Whether result `i` depends on line `own` of so many, and the share that it has. A line without a share must be left
// out: zero times NaN or infinity is NaN.
__device__ __forceinline__ bool has_share(int i, int own, int size, float scale, float& share) {
    const float position = fmaxf((i + 0.5f) * scale - 0.5f, 0.25f);
    const int first = min(int(position), size - 1), second = min(first + 1, size - 1);
    const float far = fminf(position - first, 1.0f);
    share = (own == first ? 1.0f - far : 0.0f) + (own == second ? far : 0.0f);
    return own == first || own == second;
}

// The first result, or one before it, that may depend on something at or after this position.
__device__ __forceinline__ int first_from(float position, float scale) {
    return int(floorf((position + 0.5f) / scale - 0.5f));
}

extern "C" __global__ void __launch_bounds__(THREADS)
upsample_bilinear_backward(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total,
                           int h, int w, int oh, int ow) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int col = int(at % w), row = int(at / w % h);
    const float down = float(h) / oh, across = float(w) / ow;
    // The outermost lines stand for all that lies beyond them. There the next line has a share of zero: NaN reaches it.
    const int top = row > 1 ? max(first_from(row - 1.0f, down), 0) : 0;
    const int bottom = row < h - 1 ? min(first_from(row + 1.0f, down) + 2, oh) : oh;
    const int left = col > 1 ? max(first_from(col - 1.0f, across), 0) : 0;
    const int right = col < w - 1 ? min(first_from(col + 1.0f, across) + 2, ow) : ow;
    const grad_out_t* plane = grad_out + at / w / h * oh * ow;
    float sum = 0.0f;
    for (int i = top; i < bottom;) {
        float rows = 0.0f;
        for (const int end = min(i + PIECE, bottom); i < end; ++i) {
            float of_row, of_col, along = 0.0f;
            if (!has_share(i, row, h, down, of_row)) continue;
            for (int j = left; j < right;) {
                float piece = 0.0f;
                for (const int stop = min(j + PIECE, right); j < stop; ++j) {
                    if (has_share(j, col, w, across, of_col)) {
                        piece = fmaf(of_col, float(plane[(long long)i * ow + j]), piece);
                    }
                }
                along += piece;
            }
            rows = fmaf(of_row, along, rows);
        }
        sum += rows;
    }
    grad_x[at] = grad_x_t(sum);
}
