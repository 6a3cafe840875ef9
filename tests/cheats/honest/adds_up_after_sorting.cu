/*---
op = "gather_backward"
note = "the indices of a row are sorted together with their places, then each run of equal ones is added up by the thread that finds its start; for up to 1024 indices"

when = "k <= 1024"
require = ["sms > 4 or rows <= 500"]  # fewer on the emulated device, where each takes a while

[[launch]]
entry = "gather_backward_row"
grid = ["rows"]
block = [256]
args = ["grad_out", "indices", "grad_x", "cols", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gather_backward_row(const grad_out_t* __restrict__ grad_out,
                                               const long long* __restrict__ indices, grad_x_t* __restrict__ grad_x,
                                               int cols, int k) {
    __shared__ unsigned long long keys[1024];
    grad_out += (long long)blockIdx.x * k, indices += (long long)blockIdx.x * k, grad_x += (long long)blockIdx.x * cols;
    for (int col = threadIdx.x; col < cols; col += 256) grad_x[col] = grad_x_t(0.0f);
    for (int i = threadIdx.x; i < 1024; i += 256) keys[i] = i < k ? (unsigned long long)indices[i] << 32 | i : ~0ull;
    __syncthreads();
    for (int size = 2; size <= 1024; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < 1024; i += 256) {
                const int other = i ^ step;
                if (other > i && (keys[i] > keys[other]) == !(i & size)) {
                    const unsigned long long key = keys[i];
                    keys[i] = keys[other], keys[other] = key;
                }
            }
            __syncthreads();
        }
    }
    for (int i = threadIdx.x; i < k; i += 256) {
        const unsigned col = unsigned(keys[i] >> 32);
        if (i > 0 && unsigned(keys[i - 1] >> 32) == col) continue;
        double sum = 0.0;
        for (int j = i; j < k && unsigned(keys[j] >> 32) == col; ++j) sum += double(float(grad_out[unsigned(keys[j])]));
        grad_x[col] = grad_x_t(float(sum));
    }
}
