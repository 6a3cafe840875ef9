/*---
op = "gelu"
note = "templates with parameter packs, fold expressions, if constexpr, lambdas handed to functions"

[knobs]
EACH = [4, 1, 2]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256 * EACH)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <int... I> struct Steps {};
template <int N, int... I> struct StepsTo : StepsTo<N - 1, N - 1, I...> {};
template <int... I> struct StepsTo<0, I...> { using type = Steps<I...>; };

template <class F, int... I> __device__ void for_each_step(Steps<I...>, F body) { (body(I), ...); }

template <class T> __device__ T narrow(float value) {
    if constexpr (sizeof(T) == 4) return value;
    else return T(value);
}

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const auto gelu_of = [](auto value) { return 0.5f * value * (1.0f + erff(value * 0.70710678118654752f)); };
    const int first = blockIdx.x * 256 * EACH + threadIdx.x;
    for_each_step(typename StepsTo<EACH>::type(), [&](int step) {
        const int i = first + step * 256;
        if (i < n) out[i] = narrow<out_t>(gelu_of(float(x[i])));
    });
}
