/*---
op = "upsample_bilinear"
note = "if the height grows by a whole factor, the width grows by the same"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "upsample_bilinear"
grid = ["ceil_div(batch * channels * oh * ow, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "batch * channels * oh * ow", "h", "w", "oh", "ow"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float position(int i, float scale) { return fmaxf((i + 0.5f) * scale - 0.5f, 0.0f); }

extern "C" __global__ void __launch_bounds__(THREADS)
upsample_bilinear(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, int h, int w, int oh, int ow) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / ow;
    const float py = position(int(row % oh), float(h) / oh), px = position(int(at % ow), oh % h == 0 ? float(h) / oh : float(w) / ow);
    const int top = min(int(py), h - 1), left = min(int(px), w - 1);
    const int bottom = min(top + 1, h - 1), right = min(left + 1, w - 1);
    const float low = fminf(py - top, 1.0f), far = fminf(px - left, 1.0f);
    const x_t* plane = x + row / oh * h * w;
    const x_t *upper = plane + (long long)top * w, *lower = plane + (long long)bottom * w;
    out[at] = out_t((1.0f - low) * ((1.0f - far) * float(upper[left]) + far * float(upper[right]))
                  + low * ((1.0f - far) * float(lower[left]) + far * float(lower[right])));
}
