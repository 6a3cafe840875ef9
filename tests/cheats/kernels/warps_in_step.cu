/*---
op = "rms_norm"
note = "fools a check on a device whose lanes run in step: a warp's tree of sums in shared memory has no __syncwarp"
dtypes = ["float32"]

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [32]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: wrong, unsafe
// at: confirm
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    __shared__ float tree[64];
    const long long row = (long long)blockIdx.x * cols;
    const int lane = threadIdx.x;
    float sum = 0.0f;
    for (int col = lane; col < cols; col += 32) sum += x[row + col] * x[row + col];
    tree[lane] = sum, tree[lane + 32] = 0.0f;
    for (int step = 16; step > 0; step /= 2) tree[lane] += tree[lane + step];
    const float scale = rsqrtf(tree[0] / cols + eps);
    for (int col = lane; col < cols; col += 32) out[row + col] = x[row + col] * scale * weight[col];
}
