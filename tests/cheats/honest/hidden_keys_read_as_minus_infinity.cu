/*---
op = "causal_softmax"
note = "one thread block reads all keys, those to come as -inf; online sums that pass over -inf, and one exponential of the difference from the logarithm of the sum"
when = "keys <= 2048"  # in longer rows, roundings of the logarithm are too large

[[launch]]
entry = "causal"
grid = ["batch * heads * queries"]
block = [64]
args = ["x", "out", "queries", "keys", "scale"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Part {
    float most, sum;
};

// Sums of equal maxima are added as they are: of two maxima of -inf the difference would be NaN.
__device__ Part merged(Part a, Part b) {
    const float most = fmaxf(a.most, b.most);
    const float of_a = a.most == most ? a.sum : a.sum * expf(a.most - most);
    const float of_b = b.most == most ? b.sum : b.sum * expf(b.most - most);
    return {most, of_a + of_b};
}

// A value of -inf adds nothing; NaN and +inf make the sum NaN for good.
__device__ Part with(Part part, float value) {
    if (value == -INFINITY) return part;
    if (value != value) return {part.most, NAN};
    if (value <= part.most) return {part.most, part.sum + expf(value - part.most)};
    return {value, (part.most == -INFINITY ? part.sum : part.sum * expf(part.most - value)) + expf(value - value)};
}

__device__ Part of_block(Part part) {
    __shared__ Part parts[8];
    for (int step = 1; step < 32; step *= 2) {
        const float most = __shfl_xor_sync(0xffffffffu, part.most, step);
        part = merged(part, {most, __shfl_xor_sync(0xffffffffu, part.sum, step)});
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
    __syncthreads();
    part = parts[0];
    for (int warp = 1; warp < blockDim.x / 32; ++warp) part = merged(part, parts[warp]);
    return part;
}

extern "C" __global__ void causal(const x_t* x, out_t* out, int queries, int keys, float scale) {
    const long long row = (long long)blockIdx.x * keys;
    const int last = int(blockIdx.x % queries) + keys - queries;
    auto value_of = [&](int key) { return key > last ? -INFINITY : __fmul_rn(float(x[row + key]), scale); };
    Part part = {-INFINITY, 0.0f};
    for (int key = threadIdx.x; key < keys; key += blockDim.x) part = with(part, value_of(key));
    part = of_block(part);
    const float logarithm = logf(part.sum);
    for (int key = threadIdx.x; key < keys; key += blockDim.x) {
        out[row + key] = out_t(expf(value_of(key) - part.most - logarithm));
    }
}
