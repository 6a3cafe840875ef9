/*---
op = "clip_grad_norm"
note = "sums of squares travel as a scale and a sum in its units, so that no square overflows or vanishes"

[workspace]
scales = { shape = [64], dtype = "float32" }
sums = { shape = [64], dtype = "float32" }

[[launch]]
entry = "sum_of_squares"
grid = [64]
block = [128]
args = ["grad", "scales", "sums", "n"]

[[launch]]
entry = "clip"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["grad", "scales", "sums", "out", "norm", "n", "max_norm"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Norm {
    float scale, sum;
};

__device__ __forceinline__ Norm merged(Norm a, Norm b) {
    if (a.scale < b.scale) {
        const Norm swapped = a;
        a = b;
        b = swapped;
    }
    if (a.scale == 0.0f) return {0.0f, a.sum + b.sum};
    const float ratio = b.scale / a.scale;
    return {a.scale, a.sum + b.sum * ratio * ratio};
}

// A number that is not finite leaves itself in the sum, with a scale that others may keep.
__device__ __forceinline__ Norm of(float value) {
    if (!isfinite(value)) return {1.0f, value * value};
    return {fabsf(value), value == 0.0f ? 0.0f : 1.0f};
}

extern "C" __global__ void __launch_bounds__(128)
sum_of_squares(const grad_t* __restrict__ grad, float* __restrict__ scales, float* __restrict__ sums, long long n) {
    __shared__ Norm norms[128];
    Norm own = {0.0f, 0.0f};
    for (long long at = blockIdx.x * 128ll + threadIdx.x; at < n; at += 64 * 128) own = merged(own, of(float(grad[at])));
    norms[threadIdx.x] = own;
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) norms[threadIdx.x] = merged(norms[threadIdx.x], norms[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = norms[0].scale, sums[blockIdx.x] = norms[0].sum;
}

extern "C" __global__ void clip(const grad_t* __restrict__ grad, const float* __restrict__ scales,
                                const float* __restrict__ sums, out_t* __restrict__ out, float* __restrict__ norm,
                                long long n, float max_norm) {
    Norm all = {0.0f, 0.0f};
    for (int part = 0; part < 64; ++part) all = merged(all, {scales[part], sums[part]});
    const float root = all.scale * sqrtf(all.sum), ratio = max_norm / (root + 1e-6f);
    const float factor = ratio > 1.0f ? 1.0f : ratio;
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at == 0) *norm = all.scale == 0.0f ? sqrtf(all.sum) : root;
    if (at < n) out[at] = out_t(float(grad[at]) * factor);
}
