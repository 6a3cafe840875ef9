/*---
op = "scatter_add"
note = "a block per row lists its sources in order in shared memory and adds them to x in double, one after the other; no float atomics"
require = ["sms > 4 or count <= 3000"]  # fewer on the emulated device, where each takes a while

[[launch]]
entry = "scatter_add"
grid = ["rows"]
block = [128]
args = ["x", "indices", "src", "out", "count", "dim"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void scatter_add(const x_t* x, const long long* indices, const src_t* src, out_t* out, int count,
                                       int dim) {
    __shared__ int list[128], sizes[4];
    const long long start = (long long)blockIdx.x * dim;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int left = 0; left < dim; left += 128) {
        const int col = left + threadIdx.x;
        double sum = col < dim ? double(float(x[start + col])) : 0.0;
        for (int first = 0; first < count; first += 128) {
            const int source = first + threadIdx.x;
            const bool own = source < count && indices[source] == blockIdx.x;
            const unsigned votes = __ballot_sync(0xffffffffu, own);
            if (lane == 0) sizes[warp] = __popc(votes);
            __syncthreads();
            int at = __popc(votes & ((1u << lane) - 1)), all = 0;
            for (int other = 0; other < 4; ++other) {
                at += other < warp ? sizes[other] : 0;
                all += sizes[other];
            }
            if (own) list[at] = source;
            __syncthreads();
            if (col < dim) {
                for (int i = 0; i < all; ++i) sum += double(float(src[(long long)list[i] * dim + col]));
            }
            __syncthreads();
        }
        if (col < dim) out[start + col] = out_t(float(sum));
    }
}
