/*---
op = "grid_sample_backward"
note = "a block takes some positions and shares the channels out among its warps, several channels' loads on the way at once; the warps' sums for the grid meet in shared memory; grad_x is added up by atomics, in float32 in place, and for 16-bit types in workspace that is rounded by 16-byte accesses; any shape"
specialize = ["channels", "h", "w", "area", "warps", "narrow", "wide"]

[knobs]
WARPS = [8, 4, 16]
TOGETHER = [4, 2, 8]

[let]
area = "oh * ow"
narrow = "1 - min(1, itemsize(x) // 4)"
warps = "min(WARPS, ceil_div(channels, TOGETHER))"
total = "batch * channels * h * w"
wide = "32 * max(1, 4 // warps)"

[workspace]
sums = { shape = ["narrow * total"], dtype = "float32", zero = true }

[[launch]]
entry = "clear"
grid = ["(1 - narrow) * ceil_div(total, 1024)"]
block = [256]
args = ["grad_x", "total"]

[[launch]]
entry = "sample_gradients"
grid = ["ceil_div(batch * area, wide)"]
block = ["wide", "warps"]
args = ["grad_out", "x", "grid", "sums", "grad_x", "grad_grid", "batch * area"]

[[launch]]
entry = "round_sums"
grid = ["narrow * ceil_div(total, 2048)"]
block = [256]
args = ["sums", "grad_x", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// In pixels; what is far outside is moved to where it still touches none.
__device__ __forceinline__ float position(float g, int pixels) {
    return fminf(fmaxf(((g + 1.0f) * pixels - 1.0f) / 2.0f, -2.0f), pixels + 1.0f);
}

__device__ __forceinline__ float* sums_of(float* sums, float* grad_x) { return narrow ? sums : grad_x; }
template <class T> __device__ __forceinline__ float* sums_of(float* sums, T*) { return sums; }

extern "C" __global__ void __launch_bounds__(wide * warps)
sample_gradients(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const float2* __restrict__ grid,
                 float* sums, grad_x_t* grad_x, float2* __restrict__ grad_grid, long long total) {
    __shared__ float2 met[warps][wide];
    float* const to = sums_of(sums, grad_x);
    const long long at = blockIdx.x * (long long)wide + threadIdx.x;
    float along_x = 0.0f, along_y = 0.0f;
    if (at < total) {
        const float2 g = grid[at];
        const float px = position(g.x, w), py = position(g.y, h);
        const int left = int(floorf(px)), top = int(floorf(py));
        const float across[2] = {1.0f - (px - left), px - left}, down[2] = {1.0f - (py - top), py - top};
        const long long image = at / area * channels;
        const bool touches = top >= -1 && top < h && left >= -1 && left < w;
        bool inside[4];
#pragma unroll
        for (int corner = 0; corner < 4; ++corner) {
            const int row = top + corner / 2, col = left + corner % 2;
            inside[corner] = row >= 0 && row < h && col >= 0 && col < w;
        }
        const int here = top * w + left;
        for (int first = threadIdx.y; first < channels; first += warps * TOGETHER) {
            float grads[TOGETHER], values[TOGETHER][4];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                const int channel = first + i * warps;
                const bool known = channel < channels && touches;  // an infinite gradient must not meet pixels that are not there
                const long long plane = (image + channel) * h * w + here;
                grads[i] = known ? float(grad_out[(image + channel) * area + at % area]) : 0.0f;
#pragma unroll
                for (int corner = 0; corner < 4; ++corner) {
                    values[i][corner] = known && inside[corner] ? float(x[plane + corner / 2 * w + corner % 2]) : 0.0f;
                }
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                const int channel = first + i * warps;
                if (channel >= channels || !touches) continue;
                const long long plane = (image + channel) * h * w + here;
#pragma unroll
                for (int corner = 0; corner < 4; ++corner) {
                    if (inside[corner]) {
                        atomicAdd(to + plane + corner / 2 * w + corner % 2, grads[i] * (down[corner / 2] * across[corner % 2]));
                    }
                }
                along_x += grads[i] * ((values[i][1] - values[i][0]) * down[0] + (values[i][3] - values[i][2]) * down[1]);
                along_y += grads[i] * ((values[i][2] - values[i][0]) * across[0] + (values[i][3] - values[i][1]) * across[1]);
            }
        }
    }
    if constexpr (warps > 1) {
        met[threadIdx.y][threadIdx.x] = make_float2(along_x, along_y);
        __syncthreads();
        if (threadIdx.y > 0) return;
        along_x = along_y = 0.0f;
#pragma unroll
        for (int warp = 0; warp < warps; ++warp) along_x += met[warp][threadIdx.x].x, along_y += met[warp][threadIdx.x].y;
    }
    if (at < total) grad_grid[at] = make_float2(along_x * (w / 2.0f), along_y * (h / 2.0f));
}

extern "C" __global__ void __launch_bounds__(256) clear(grad_x_t* __restrict__ grad_x, long long total) {
    const long long first = (blockIdx.x * 256ll + threadIdx.x) * 4;
    if (first + 4 <= total && sizeof(grad_x_t) == 4) {
        *reinterpret_cast<float4*>(grad_x + first) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    } else {
        for (long long at = first; at < min(first + 4, total); ++at) grad_x[at] = grad_x_t(0.0f);
    }
}

struct alignas(8 * sizeof(grad_x_t) < 16 ? 8 * sizeof(grad_x_t) : 16) Eight { grad_x_t at[8]; };

extern "C" __global__ void __launch_bounds__(256)
round_sums(const float* __restrict__ sums, grad_x_t* __restrict__ grad_x, long long total) {
    const long long first = (blockIdx.x * 256ll + threadIdx.x) * 8;
    if (first + 8 <= total) {
        Eight made;
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const float4 some = *reinterpret_cast<const float4*>(sums + first + i);
            made.at[i] = grad_x_t(some.x), made.at[i + 1] = grad_x_t(some.y);
            made.at[i + 2] = grad_x_t(some.z), made.at[i + 3] = grad_x_t(some.w);
        }
        *reinterpret_cast<Eight*>(grad_x + first) = made;
    } else {
        for (long long at = first; at < total; ++at) grad_x[at] = grad_x_t(sums[at]);
    }
}
