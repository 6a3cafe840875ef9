/*---
op = "rms_norm_silu_backward"
note = "gates below -15 have no gradient"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[let]
parts = "min(rows, 128)"

[workspace]
scales = { shape = ["rows"], dtype = "float32" }
sums = { shape = ["parts", "cols"], dtype = "float32" }

[[launch]]
entry = "grad_of_row"
grid = ["rows"]
block = ["THREADS"]
args = ["grad_out", "x", "z", "weight", "grad_x", "grad_z", "scales", "cols", "eps"]

[[launch]]
entry = "sum_some_rows"
grid = ["ceil_div(cols, THREADS)", "parts"]
block = ["THREADS"]
args = ["grad_out", "x", "z", "scales", "sums", "rows", "cols"]

[[launch]]
entry = "sum_parts"
grid = ["ceil_div(cols, 32)"]
block = [32, 8]
args = ["sums", "grad_weight", "parts", "cols"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncthreads();  // the sums of the call before are read
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = lane < THREADS / 32 ? sums[lane] : 0.0f;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ __forceinline__ float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

extern "C" __global__ void __launch_bounds__(THREADS)
grad_of_row(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const z_t* __restrict__ z,
            const weight_t* __restrict__ weight, grad_x_t* __restrict__ grad_x, grad_z_t* __restrict__ grad_z,
            float* __restrict__ scales, int cols, float eps) {
    const long long row = (long long)blockIdx.x * cols;
    float squares = 0.0f, along = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float gate = float(z[row + col]), value = float(x[row + col]) * (gate * sigmoid(gate));
        squares = fmaf(value, value, squares);
        along = fmaf(float(grad_out[row + col]) * float(weight[col]), value, along);
    }
    const float scale = rsqrtf(sum_of_block(squares) / cols + eps);
    along = sum_of_block(along) * scale / cols;
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float gate = float(z[row + col]), value = float(x[row + col]), share = sigmoid(gate);
        const float normed = value * (gate * share) * scale;
        const float grad = scale * (float(grad_out[row + col]) * float(weight[col]) - normed * along);
        grad_x[row + col] = grad_x_t(grad * (gate * share));
        grad_z[row + col] = grad_z_t(gate < -15.0f ? 0.0f : grad * value * share * (1.0f + gate * (1.0f - share)));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_some_rows(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const z_t* __restrict__ z,
              const float* __restrict__ scales, float* __restrict__ sums, int rows, int cols) {
    const int col = blockIdx.x * THREADS + threadIdx.x;
    if (col >= cols) return;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const long long at = (long long)row * cols + col;
        const float gate = float(z[at]), value = float(x[at]) * (gate * sigmoid(gate));
        sum = fmaf(float(grad_out[at]), value * scales[row], sum);
    }
    sums[(long long)blockIdx.y * cols + col] = sum;
}

// Eight threads to a column, so that no chain of additions is long.
extern "C" __global__ void sum_parts(const float* __restrict__ sums, grad_weight_t* __restrict__ grad_weight, int parts,
                                     int cols) {
    __shared__ float shares[8][32];
    const int col = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    for (int part = threadIdx.y; part < parts && col < cols; part += 8) sum += sums[(long long)part * cols + col];
    shares[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || col >= cols) return;
    for (int share = 1; share < 8; ++share) sum += shares[share][threadIdx.x];
    grad_weight[col] = grad_weight_t(sum);
}
