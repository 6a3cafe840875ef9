/*---
op = "tanh"
note = "tanh is a quotient of polynomials without the clamp at nine, beyond which it is far off"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "tanh_values"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// A quotient of polynomials that is right to nine; the argument must be clamped there, which is forgotten.
__device__ __forceinline__ float tanh_by_polynomials(float x) {
    const float square = x * x;
    float top = fmaf(square, -2.76076847742355e-16f, 2.00018790482477e-13f);
    top = fmaf(square, top, -8.60467152213735e-11f);
    top = fmaf(square, top, 5.12229709037114e-08f);
    top = fmaf(square, top, 1.48572235717979e-05f);
    top = fmaf(square, top, 6.37261928875436e-04f);
    top = fmaf(square, top, 4.89352455891786e-03f);
    float bottom = fmaf(square, 1.19825839466702e-06f, 1.18534705686654e-04f);
    bottom = fmaf(square, bottom, 2.26843463243900e-03f);
    bottom = fmaf(square, bottom, 4.89352518554385e-03f);
    return x * top / bottom;
}

__device__ __forceinline__ float tanh_of(float x) { return tanh_by_polynomials(x); }

extern "C" __global__ void tanh_values(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(tanh_of(float(x[at])));
    }
}
