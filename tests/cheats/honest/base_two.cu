/*---
op = "log_softmax"
note = "exponentials and logarithm in base 2, by exp2f and log2f; online sums that pass over -inf and keep NaN"

[[launch]]
entry = "log_softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Part {
    float most, sum;
};

// Sums of equal maxima are added as they are: of two maxima of -inf the difference would be NaN.
__device__ Part merged(Part a, Part b) {
    const float most = fmaxf(a.most, b.most);
    const float of_a = a.most == most ? a.sum : a.sum * exp2f(1.44269504f * (a.most - most));
    const float of_b = b.most == most ? b.sum : b.sum * exp2f(1.44269504f * (b.most - most));
    return {most, of_a + of_b};
}

// A value of -inf adds nothing; NaN and +inf make the sum NaN for good.
__device__ Part with(Part part, float value) {
    if (value == -INFINITY) return part;
    if (value != value) return {part.most, NAN};
    if (value <= part.most) return {part.most, part.sum + exp2f(1.44269504f * (value - part.most))};
    return {value, (part.most == -INFINITY ? part.sum : part.sum * exp2f(1.44269504f * (part.most - value))) + exp2f(1.44269504f * (value - value))};
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

extern "C" __global__ void log_softmax(const x_t* x, out_t* out, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    Part part = {-INFINITY, 0.0f};
    for (int col = threadIdx.x; col < cols; col += blockDim.x) part = with(part, float(x[row + col]));
    part = of_block(part);
    const float logarithm = 0.69314718f * log2f(part.sum);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        out[row + col] = out_t((float(x[row + col]) - part.most) - logarithm);
    }
}
