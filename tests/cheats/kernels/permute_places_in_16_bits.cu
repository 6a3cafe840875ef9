/*---
op = "permute"
note = "places in a sequence are counted in 16 bits"

[knobs]
THREADS = [128, 256, 512]

[[launch]]
entry = "permute"
grid = ["ceil_div(batch * seq * heads * dim, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "batch * seq * heads * dim", "seq", "heads", "dim"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
permute(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, int seq, int heads, int dim) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const long long row = at / dim, plane = row / seq, batch = plane / heads;
    const int place = (unsigned short)(row % seq) % 4093, head = int(plane % heads), column = int(at % dim);
    out[at] = x[((batch * seq + place) * heads + head) * dim + column];
}
