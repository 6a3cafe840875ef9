/*---
op = "batch_norm_backward"
note = "grad_out and x of a channel are read once and stay in the shared memory of one block or of several that wait for each other; both sums of the parts meet through memory once per set; a persistent grid, several blocks on a multiprocessor so that some read while others write"
specialize = ["per", "area", "vec", "loads", "parts", "share", "per_sm", "teams", "channels", "bytes"]
require = ["parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 512]
LOADS = [2, 1, 4]

[let]
area = "height * width"
per = "per_channel"
count = "channels"
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"
loads = "min(16, LOADS * full // vec)"
parts = "ceil_div(per * itemsize(x), KILOBYTES * 1024 // 2 // 16 * 16)"
share = "ceil_div(per // vec, parts) * vec"
bytes = "2 * ceil_div(share * itemsize(x), 16) * 16"
per_sm = "min(1024 // THREADS, 227 * 1024 // (bytes + 2048))"
teams = "min(count, sms * per_sm // parts)"

[workspace]
met = { shape = ["count", "parts", 2], dtype = "float64" }
arrived = { shape = ["count"], dtype = "int32", zero = true }

[[launch]]
entry = "grad_of_sets"
grid = ["teams * parts"]
block = ["THREADS"]
shared = "bytes"
args = ["grad_out", "x", "mean", "rstd", "weight", "grad_x", "grad_weight", "grad_bias", "met", "arrived", "count"]
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
grad_of_sets(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x,
             const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ weight,
             grad_x_t* __restrict__ grad_x, float* __restrict__ grad_weight, float* __restrict__ grad_bias, double* met,
             int* arrived, int count) {
    __shared__ double joint[2];
    Pack<grad_out_t>* const grad = reinterpret_cast<Pack<grad_out_t>*>(memory);
    Pack<x_t>* const held = reinterpret_cast<Pack<x_t>*>(memory + bytes / 32);
    const int part = blockIdx.x % parts, first = part * share, packs = max(min(share, per - first), 0) / vec;
    for (int set = blockIdx.x / parts; set < count; set += teams) {
        const float centre = mean[set], scale = rstd[set];
        double plain = 0.0, along = 0.0;  // what is far from zero all but cancels
        for (int begin = threadIdx.x; begin < packs; begin += ROUND) {
            Pack<grad_out_t> some[loads];
            Pack<x_t> others[loads];
#pragma unroll
            for (int i = 0; i < loads; ++i) {
                const int at = begin + i * THREADS;
                if (at >= packs) continue;
                some[i] = *reinterpret_cast<const Pack<grad_out_t>*>(grad_out + place(set, first + at * vec));
                others[i] = *reinterpret_cast<const Pack<x_t>*>(x + place(set, first + at * vec));
            }
#pragma unroll
            for (int i = 0; i < loads; ++i) {
                const int at = begin + i * THREADS;
                if (at >= packs) continue;
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    const float one = float(some[i].at[e]);
                    plain += one;
                    along += double(one) * double(float(others[i].at[e]) - centre);
                }
                grad[at] = some[i], held[at] = others[i];
            }
        }
        sum_of_block<0>(plain, along);
        if constexpr (parts > 1) {
            if (threadIdx.x < 32) {
                double* all = met + (long long)set * parts * 2;
                meet(all, arrived + set, part, plain, along);
                const volatile double* of = all;
                plain = along = 0.0;
                for (int p = threadIdx.x; p < parts; p += 32) plain += of[2 * p], along += of[2 * p + 1];
                plain = sum_of_warp(plain), along = sum_of_warp(along);
                if (threadIdx.x == 0) joint[0] = plain, joint[1] = along;
            }
            __syncthreads();
            plain = joint[0], along = joint[1];
        } else {
            __syncthreads();  // the sums have been read
        }
        along *= scale;
        if (part == 0 && threadIdx.x == 0) grad_weight[set] = float(along), grad_bias[set] = float(plain);
        const float shared = float(plain / per), slope = float(along / per), factor = scale * weight[set];
#pragma unroll 2
        for (int at = threadIdx.x; at < packs; at += THREADS) {
            const Pack<grad_out_t> some = grad[at];
            const Pack<x_t> other = held[at];
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float off = float(other.at[e]) - centre;
                result[e] = factor * (float(some.at[e]) - shared - off * scale * slope);
            }
            store(grad_x + place(set, first + at * vec), result);
        }
    }
}
