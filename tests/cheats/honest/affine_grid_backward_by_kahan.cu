/*---
op = "affine_grid_backward"
note = "compensated sums, one warp per coefficient"

[[launch]]
entry = "affine_grid_backward"
grid = ["batch"]
block = [192]
args = ["grad_grid", "grad_theta", "h", "w"]
---*/
extern "C" __global__ void
affine_grid_backward(const float* __restrict__ grad_grid, float* __restrict__ grad_theta, int h, int w) {
    const int lane = threadIdx.x % 32, own = threadIdx.x / 32, axis = own / 3, factor = own % 3;
    const float* image = grad_grid + 2ll * blockIdx.x * h * w;
    float sum = 0.0f, lost = 0.0f;
    for (int at = lane; at < h * w; at += 32) {
        const float x = float(2 * (at % w) + 1 - w) / w, y = float(2 * (at / w) + 1 - h) / h;
        const float term = __fmul_rn(image[2 * at + axis], factor == 0 ? x : factor == 1 ? y : 1.0f);
        const float fixed = __fsub_rn(term, lost), next = __fadd_rn(sum, fixed);
        lost = __fsub_rn(__fsub_rn(next, sum), fixed);
        sum = next;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) grad_theta[blockIdx.x * 6 + own] = sum;
}
