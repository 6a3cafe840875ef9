/*---
op = "cumprod_backward"
note = "one block per row, from its end, in tiles of 16-byte packs that stay in registers: each warp scans packs side by side, one barrier a tile, and the next tile is loaded meanwhile; quotients by a reciprocal, because a division is slow where the sum is zero, as most are once the product has underflowed"
when = "cols * itemsize(x) % 16 == 0"
specialize = ["threads"]
require = ["THREADS * PER <= 1024"]

[knobs]
THREADS = [256, 128, 512]
PER = [1, 2]

[let]
threads = "min(THREADS, 32 * ceil_div(cols * itemsize(x), 512))"

[[launch]]
entry = "gradient_row"
grid = ["rows"]
block = ["threads"]
args = ["grad_out", "x", "out", "grad_x", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 16 / sizeof(x_t);
constexpr int WARPS = threads / 32;
constexpr int RUNS = WARPS * PER;  // of 32 packs, in a tile

union Pack {
    uint4 raw;  // as packs are on their way, so that their values are not taken apart
    x_t values[WIDTH];
};

// Sums up to and including each lane's own; lanes count from the end of the row.
__device__ __forceinline__ float scanned(float value, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

// What a zero at `zero`, the first of its row, gets: the products without it, up to the next zero. All behind it is 0.
__device__ void correct_from(int zero, const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x,
                             const out_t* __restrict__ out, grad_x_t* __restrict__ grad_x, int cols) {
    for (int col = zero + 1 + threadIdx.x; col < cols; col += threads) grad_x[col] = grad_x_t(0.0f);
    if (threadIdx.x > 0) return;
    double product = 1.0, sum = double(float(grad_out[zero]));
    for (int col = zero + 1; col < cols && float(x[col]) != 0.0f; ++col) {
        product *= float(x[col]);
        sum += double(float(grad_out[col])) * product;
    }
    grad_x[zero] = grad_x_t(float(sum * (zero > 0 ? float(out[zero - 1]) : 1.0f)));
}

// value / by, for a `by` that is NaN or far from the ends of float32's range.
__device__ __forceinline__ float quotient(float value, float by) {
    const float reciprocal = __fdividef(1.0f, by), near = value * reciprocal;
    if constexpr (sizeof(x_t) == 2) return near;
    const float better = fmaf(fmaf(-near, by, value), reciprocal, near);
    return fabsf(near) < INFINITY ? better : near;  // what an infinite quotient leaves is NaN
}

extern "C" __global__ void __launch_bounds__(threads)
gradient_row(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const out_t* __restrict__ out,
             grad_x_t* __restrict__ grad_x, int cols) {
    __shared__ float ends[2][32];  // of the runs, this tile's and the last one's in turn
    __shared__ int zero;  // the first of the row, or `cols`
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = cols / WIDTH;
    const long long row = (long long)blockIdx.x * cols;
    const uint4* grads = reinterpret_cast<const uint4*>(grad_out + row);
    const uint4* products = reinterpret_cast<const uint4*>(out + row);
    const uint4* factors = reinterpret_cast<const uint4*>(x + row);
    uint4* to = reinterpret_cast<uint4*>(grad_x + row);
    if (threadIdx.x == 0) zero = cols;
    uint4 next_grad[PER], next_product[PER], next_factor[PER];
    const auto load = [&](int start) {
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            const int at = count - 1 - (start + i * threads + int(threadIdx.x));
            next_grad[i] = next_product[i] = next_factor[i] = uint4{0, 0, 0, 0};
            if (at < 0) continue;
            next_grad[i] = grads[at], next_product[i] = products[at], next_factor[i] = factors[at];
        }
    };
    float before = 0.0f;  // of all tiles up to here
    load(0);
    for (int start = 0, turn = 0; start < count; start += PER * threads, turn ^= 1) {
        float own[PER][WIDTH], upto[PER];
        Pack factor[PER];
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            Pack grad, product;
            grad.raw = next_grad[i], product.raw = next_product[i], factor[i].raw = next_factor[i];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) own[i][j] = float(grad.values[j]) * float(product.values[j]);
        }
        if (start + PER * threads < count) load(start + PER * threads);
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            float part = 0.0f;
#pragma unroll
            for (int j = WIDTH - 1; j >= 0; --j) part += own[i][j];
            upto[i] = scanned(part, lane);
            if (lane == 31) ends[turn][i * WARPS + warp] = upto[i];
        }
        __syncthreads();
        const float runs = scanned(lane < RUNS ? ends[turn][lane] : 0.0f, lane);
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            const int run = i * WARPS + warp, at = count - 1 - (start + i * threads + int(threadIdx.x));
            const float earlier = __shfl_sync(0xffffffffu, runs, run > 0 ? run - 1 : 0);
            const float in_run = __shfl_up_sync(0xffffffffu, upto[i], 1);
            if (at < 0) continue;
            float sum = before + ((run > 0 ? earlier : 0.0f) + (lane > 0 ? in_run : 0.0f));
            float least = INFINITY, most = 0.0f;
#pragma unroll
            for (int j = WIDTH - 1; j >= 0; --j) {
                const float size = fabsf(float(factor[i].values[j]));
                least = fminf(least, size), most = fmaxf(most, size);
                own[i][j] = sum += own[i][j];
            }
            Pack result;
            if (least > 1e-30f && most < 1e30f) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) result.values[j] = x_t(quotient(own[i][j], float(factor[i].values[j])));
            } else {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) {
                    result.values[j] = x_t(own[i][j] / float(factor[i].values[j]));
                    if (float(factor[i].values[j]) == 0.0f) atomicMin(&zero, at * WIDTH + j);
                }
            }
            to[at] = result.raw;
        }
        before += __shfl_sync(0xffffffffu, runs, 31);
    }
    __syncthreads();
    if (zero < cols) correct_from(zero, grad_out + row, x + row, out + row, grad_x + row, cols);
}
