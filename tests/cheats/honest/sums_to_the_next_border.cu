/*---
op = "avg_pool1d"
note = "running sums towards both sides of borders a kernel apart, in scratch memory, so that every window is two numbers and nothing is subtracted"

[let]
pieces = "ceil_div(l + 2 * padding, kernel)"

[workspace]
ahead = { shape = ["n", "c", "pieces", "kernel"], dtype = "float32" }
behind = { shape = ["n", "c", "pieces", "kernel"], dtype = "float32" }

[[launch]]
entry = "runs"
grid = ["ceil_div(n * c * pieces, 128)"]
block = [128]
args = ["x", "ahead", "behind", "n * c * pieces", "pieces", "l", "kernel", "padding"]

[[launch]]
entry = "windows"
grid = ["ceil_div(n * c * ol, 128)"]
block = [128]
args = ["ahead", "behind", "out", "n * c * ol", "pieces", "ol", "kernel", "stride"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void runs(const x_t* x, float* ahead, float* behind, long long total, int pieces, int l,
                                int kernel, int padding) {
    const long long piece = blockIdx.x * 128ll + threadIdx.x;
    if (piece >= total) return;
    const x_t* row = x + piece / pieces * l;
    const int begin = int(piece % pieces) * kernel - padding;
    float sum = 0.0f;
    for (int i = 0; i < kernel; ++i) {  // up to and with place i
        if (begin + i >= 0 && begin + i < l) sum += float(row[begin + i]);
        ahead[piece * kernel + i] = sum;
    }
    sum = 0.0f;
    for (int i = kernel - 1; i >= 0; --i) {  // from place i on
        if (begin + i >= 0 && begin + i < l) sum += float(row[begin + i]);
        behind[piece * kernel + i] = sum;
    }
}

extern "C" __global__ void windows(const float* ahead, const float* behind, out_t* out, long long total, int pieces,
                                   int ol, int kernel, int stride) {
    const long long at = blockIdx.x * 128ll + threadIdx.x;
    if (at >= total) return;
    const long long first = at / ol * pieces * kernel + at % ol * stride;
    float sum = behind[first];
    if (at % ol * stride % kernel) sum += ahead[first + kernel - 1];
    out[at] = out_t(sum / kernel);
}
