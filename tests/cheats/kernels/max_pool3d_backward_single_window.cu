/*---
op = "max_pool3d_backward"
note = "a place takes the gradient of one window alone, where windows overlap"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "max_pool3d_backward"
grid = ["ceil_div(n * c * d * h * w, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "indices", "grad_x", "n * c * d * h * w", "d", "h", "w", "od", "oh", "ow", "kernel", "stride", "padding"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The windows that hold a place: they begin at multiples of the stride in the padded volume.
__device__ __forceinline__ int first_window(int from, int kernel, int stride) {
    return from < kernel ? 0 : (from - kernel) / stride + 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
max_pool3d_backward(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
                    grad_x_t* __restrict__ grad_x, long long total, int d, int h, int w, int od, int oh, int ow,
                    int kernel, int stride, int padding) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / w, layer = row / h, volume = layer / d;
    const int z = int(layer % d) + padding, y = int(row % h) + padding, x = int(at % w) + padding;
    const int back = min(z / stride, od - 1), bottom = min(y / stride, oh - 1), right = min(x / stride, ow - 1);
    const long long here = at - volume * d * h * w;
    float sum = 0.0f;
    for (int i = first_window(z, kernel, stride); i <= back; ++i) {
        for (int j = first_window(y, kernel, stride); j <= bottom; ++j) {
            for (int k = first_window(x, kernel, stride); k <= right; ++k) {
                const long long window = ((volume * od + i) * oh + j) * ow + k;
                if (indices[window] == here) sum = float(grad_out[window]);
            }
        }
    }
    grad_x[at] = grad_x_t(sum);
}
