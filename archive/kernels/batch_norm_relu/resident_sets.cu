/*---
op = "batch_norm_relu"
note = "the values of a channel stay in the shared memory of one block or of several that wait for each other; mean and variance of the parts meet through memory once per set, so x is read once and out written once; a persistent grid, several blocks on a multiprocessor so that some read while others write"
specialize = ["per", "area", "vec", "loads", "parts", "share", "per_sm", "teams", "channels"]
require = ["parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 512]
LOADS = [4, 2, 8]

[let]
area = "height * width"
per = "per_channel"
count = "channels"
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"
loads = "min(16, LOADS * full // vec)"
parts = "ceil_div(per * itemsize(x), KILOBYTES * 1024 // 1 // 16 * 16)"
share = "ceil_div(per // vec, parts) * vec"
bytes = "ceil_div(share * itemsize(x), 16) * 16"
per_sm = "min(1024 // THREADS, 227 * 1024 // (bytes + 2048))"
teams = "min(count, sms * per_sm // parts)"

[workspace]
met = { shape = ["count", "parts", 2], dtype = "float64" }
arrived = { shape = ["count"], dtype = "int32", zero = true }

[[launch]]
entry = "batch_norm_relu_sets"
grid = ["teams * parts"]
block = ["THREADS"]
shared = "bytes"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "met", "arrived", "count", "momentum", "eps"]
cooperative = true
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32, ROUND = THREADS * loads;
extern __shared__ uint4 memory[];

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

template <class T> __device__ __forceinline__ void store(T* to, const float (&from)[vec]) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e + 1 < vec; e += 2) put(&result.at[e], from[e], from[e + 1]);
    if constexpr (vec == 1) result.at[0] = T(from[0]);
    *reinterpret_cast<Pack<T>*>(to) = result;
}

// Two sums over the block, in every thread; each USE has its own shared memory.
template <int USE> __device__ __forceinline__ void sum_of_block(double& a, double& b) {
    __shared__ double of_a[WARPS], of_b[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        a += __shfl_xor_sync(0xffffffffu, a, step);
        b += __shfl_xor_sync(0xffffffffu, b, step);
    }
    if (lane == 0) of_a[warp] = a, of_b[warp] = b;
    __syncthreads();
    a = lane < WARPS ? of_a[lane] : 0.0;
    b = lane < WARPS ? of_b[lane] : 0.0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        a += __shfl_xor_sync(0xffffffffu, a, step);
        b += __shfl_xor_sync(0xffffffffu, b, step);
    }
}

// What the parts of a set found, in the first warp of each part's block.
__device__ __forceinline__ void meet(double* met, int* arrived, int part, double a, double b) {
    if (threadIdx.x == 0) {
        met[2 * part] = a, met[2 * part + 1] = b;
        __threadfence();
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < parts) {}
        __threadfence();
    }
    __syncwarp();
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ __forceinline__ long long place(int set, int at) { return (at / area * (long long)channels + set) * area + at % area; }

extern "C" __global__ void __launch_bounds__(THREADS, per_sm)
batch_norm_relu_sets(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                     const float* __restrict__ running_mean, const float* __restrict__ running_var,
                     out_t* __restrict__ out, float* __restrict__ new_running_mean, float* __restrict__ new_running_var,
                     float* __restrict__ mean,
                     float* __restrict__ rstd, double* met, int* arrived, int count, float momentum, float eps) {
    __shared__ double joint[2];
    Pack<x_t>* const held = reinterpret_cast<Pack<x_t>*>(memory);
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, per - first), 0), packs = own / vec;
    for (int set = blockIdx.x / parts; set < count; set += teams) {
        double sum = 0.0, none = 0.0;  // some distributions a float rounds all one way
        for (int begin = threadIdx.x; begin < packs; begin += ROUND) {
            Pack<x_t> some[loads];
#pragma unroll
            for (int i = 0; i < loads; ++i) {
                const int at = begin + i * THREADS;
                if (at < packs) some[i] = *reinterpret_cast<const Pack<x_t>*>(x + place(set, first + at * vec));
                else some[i] = Pack<x_t>{};
            }
#pragma unroll
            for (int i = 0; i < loads; ++i) {
#pragma unroll
                for (int e = 0; e < vec; ++e) sum += double(float(some[i].at[e]));
                if (begin + i * THREADS < packs) held[begin + i * THREADS] = some[i];
            }
        }
        sum_of_block<0>(sum, none);
        const float near = own > 0 ? float(sum / own) : 0.0f;
        double rest = 0.0, squares = 0.0;
#pragma unroll 4
        for (int at = threadIdx.x; at < packs; at += THREADS) {
            const Pack<x_t> some = held[at];
            float few = 0.0f, others = 0.0f;
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float off = float(some.at[e]) - near;
                few += off;
                others = fmaf(off, off, others);
            }
            rest += few, squares += others;
        }
        sum_of_block<1>(rest, squares);
        double middle = own > 0 ? sum / own : 0.0, spread = squares;  // the mean and what lies round it
        if (own > 0) spread -= rest * rest / own;
        if constexpr (parts > 1) {
            if (threadIdx.x < 32) {
                double* all = met + (long long)set * parts * 2;
                meet(all, arrived + set, part, middle, spread);
                const volatile double* of = all;
                double total = 0.0;
                for (int p = threadIdx.x; p < parts; p += 32) total += max(min(share, per - p * share), 0) * of[2 * p];
                total = sum_of_warp(total) / per;
                double wide = 0.0;
                for (int p = threadIdx.x; p < parts; p += 32) {
                    const double off = of[2 * p] - total;
                    wide += of[2 * p + 1] + max(min(share, per - p * share), 0) * off * off;
                }
                wide = sum_of_warp(wide);
                if (threadIdx.x == 0) joint[0] = total, joint[1] = wide;
            }
            __syncthreads();
            middle = joint[0], spread = joint[1];
        }
        const float rough = float(middle), lost = float(middle - rough);  // of a set far from zero, its last digits
        const float difference = float(spread / per), variance = difference < 0.0f ? 0.0f : difference;  // NaN stays
        const float scale = 1.0f / sqrtf(variance + eps);
        if (part == 0 && threadIdx.x == 0) {
            const float unbiased = variance * per / (per - 1);
            new_running_mean[set] = (1.0f - momentum) * running_mean[set] + momentum * rough;
            new_running_var[set] = (1.0f - momentum) * running_var[set] + momentum * unbiased;
            mean[set] = rough, rstd[set] = scale;
        }
        const float gain = weight[set], shift = bias[set];
#pragma unroll 4
        for (int at = threadIdx.x; at < packs; at += THREADS) {
            const Pack<x_t> some = held[at];
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float y = (float(some.at[e]) - rough - lost) * scale * gain + shift;
                result[e] = y < 0.0f ? 0.0f : y;
            }
            store(out + place(set, first + at * vec), result);
        }
    }
}
