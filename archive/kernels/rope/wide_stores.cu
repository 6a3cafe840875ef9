/*---
op = "rope"
note = "a thread keeps the sines and cosines of its pairs and turns them in several heads, whose loads are all in flight at once; 16-byte accesses where half of a head allows; results are stored in accesses as wide as the loads"
specialize = ["seq", "pairs", "vec", "packs", "heads", "turns"]

[knobs]
HEADS = [4, 1, 2, 8]
THREADS = [128, 64, 256]

[let]
pairs = "half"
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, pairs % 2)) + 2 * (1 - min(1, pairs % 4)) + 4 * (1 - min(1, pairs % 8)))"
packs = "pairs // vec"
turns = "ceil_div(heads, HEADS)"
total = "batch * turns * seq * packs"

[[launch]]
entry = "turn_pairs"
grid = ["ceil_div(total, THREADS)"]
block = ["THREADS"]
args = ["x", "cos", "sin", "out", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };
__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

template <class T> __device__ __forceinline__ void store(T* to, const float (&from)[vec]) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e + 1 < vec; e += 2) put(&result.at[e], from[e], from[e + 1]);
    if constexpr (vec == 1) result.at[0] = T(from[0]);
    write(to, result);
}

extern "C" __global__ void __launch_bounds__(THREADS)
turn_pairs(const x_t* __restrict__ x, const float* __restrict__ cosines, const float* __restrict__ sines,
           out_t* __restrict__ out, long long total) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int pair = int(at % packs) * vec, place = int(at / packs % seq);
    const long long slice = at / packs / seq;
    const int first = int(slice % turns) * HEADS;
    const long long head = slice / turns * heads + first, angle = (long long)place * pairs + pair;
    Pack<x_t> one[HEADS], two[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (first + h >= heads) continue;
        const x_t* from = x + ((head + h) * seq + place) * (2 * pairs) + pair;
        one[h] = *reinterpret_cast<const Pack<x_t>*>(from);
        two[h] = *reinterpret_cast<const Pack<x_t>*>(from + pairs);
    }
    const Pack<float> c = *reinterpret_cast<const Pack<float>*>(cosines + angle);
    const Pack<float> s = *reinterpret_cast<const Pack<float>*>(sines + angle);
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (first + h >= heads) continue;
        float a[vec], b[vec];
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            const float left = float(one[h].at[e]), right = float(two[h].at[e]);
            a[e] = left * c.at[e] - right * s.at[e];
            b[e] = right * c.at[e] + left * s.at[e];
        }
        out_t* to = out + ((head + h) * seq + place) * (2 * pairs) + pair;
        store(to, a);
        store(to + pairs, b);
    }
}
