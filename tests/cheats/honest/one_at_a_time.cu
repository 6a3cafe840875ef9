/*---
op = "argmax"
note = "two blocks a row enter their maximum under a lock, and the second one takes it from there"
[workspace]
best = { shape = ["rows"], dtype = "float32", zero = true }
where = { shape = ["rows"], dtype = "int32", zero = true }
locks = { shape = ["rows"], dtype = "int32", zero = true }
arrived = { shape = ["rows"], dtype = "int32", zero = true }

[[launch]]
entry = "argmax"
grid = ["rows", 2]
block = [32]
args = ["x", "best", "where", "locks", "arrived", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void argmax(const x_t* __restrict__ x, float* best, int* where, int* locks, int* arrived,
                                  long long* out, int cols) {
    const x_t* row = x + (long long)blockIdx.x * cols;
    const int half = blockIdx.y, length = (cols + 1) / 2, begin = half * length, end = min(cols, begin + length);
    float most = -INFINITY;
    int at = 0x7fffffff;
    for (int col = begin + threadIdx.x; col < end; col += 32) {
        const float value = float(row[col]);
        if (at == 0x7fffffff || (!(value <= most) && most == most)) most = value, at = col;
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, step);
        const int there = __shfl_xor_sync(0xffffffffu, at, step);
        const bool above = !(other <= most) && most == most, below = !(most <= other) && other == other;
        if (there != 0x7fffffff && (at == 0x7fffffff || above || (!below && there < at))) most = other, at = there;
    }
    if (threadIdx.x > 0) return;
    while (atomicCAS(&locks[blockIdx.x], 0, 1) != 0) {}
    __threadfence();
    const float other = __ldcg(&best[blockIdx.x]);
    const int there = __ldcg(&where[blockIdx.x]) - 1;
    const bool above = !(other <= most) && most == most, below = !(most <= other) && other == other;
    if (at == 0x7fffffff || (there >= 0 && (above || (!below && there < at)))) most = other, at = there;
    best[blockIdx.x] = most;
    where[blockIdx.x] = at + 1;
    __threadfence();
    atomicExch(&locks[blockIdx.x], 0);
    __threadfence();
    if (atomicAdd(&arrived[blockIdx.x], 1) == 1) out[blockIdx.x] = __ldcg(&where[blockIdx.x]) - 1;
}
