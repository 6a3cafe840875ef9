/*---
op = "fp8_gemv"
note = "a warp makes a few rows of x times a few rows of the matrix, by 16-byte loads of which several rows' are in flight at once; 8-bit weights become floats by integer operations on whole words; x comes from the caches; a row with a NaN weight is found by three operations on four weights"
specialize = ["k", "vec", "each"]
require = ["WARPS <= 16"]

[knobs]
WARPS = [8, 4, 16]
OF_WEIGHT = [4, 1, 2]
OF_X = [4, 1, 2]
LOADS = [2, 1, 4]

[let]
vec = "min(16 // itemsize(weight), 1 + (1 - min(1, k % 2)) + 2 * (1 - min(1, k % 4)) + 4 * (1 - min(1, k % 8)) + 8 * (1 - min(1, k % 16)))"
each = "min(OF_X, m)"

[[launch]]
entry = "multiply"
grid = ["ceil_div(n, WARPS * OF_WEIGHT)", "ceil_div(m, each)"]
block = ["32 * WARPS"]
args = ["x", "weight", "scales", "out", "m", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

// The bits are those of a half but for the width of the exponent: of a value divided by 256.
__device__ __forceinline__ void widen(float (&to)[vec], const Pack<unsigned char>& from) {
    if constexpr (vec % 4 == 0) {
#pragma unroll
        for (int e = 0; e < vec; e += 4) {
            const unsigned word = *reinterpret_cast<const unsigned*>(&from.at[e]);
            const unsigned odd = (word & 0x80008000u) | ((word & 0x7f007f00u) >> 1);
            const unsigned even = ((word << 8) & 0x80008000u) | (((word << 8) & 0x7f007f00u) >> 1);
            const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&even));
            const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&odd));
            to[e] = a.x, to[e + 1] = b.x, to[e + 2] = a.y, to[e + 3] = b.y;
        }
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            to[e] = __half2float(__ushort_as_half((from.at[e] & 0x80) << 8 | (from.at[e] & 0x7f) << 7));
        }
    }
}

// The top bit of each byte of the result is set if a byte of the pack is NaN, whose seven low bits are ones.
__device__ __forceinline__ unsigned nan_bits(const Pack<unsigned char>& from) {
    unsigned bits = 0;
    if constexpr (vec % 4 == 0) {
#pragma unroll
        for (int e = 0; e < vec; e += 4) bits |= (*reinterpret_cast<const unsigned*>(&from.at[e]) & 0x7f7f7f7fu) + 0x01010101u;
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e) bits |= (from.at[e] & 0x7fu) + 1;
    }
    return bits & 0x80808080u;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
multiply(const x_t* __restrict__ x, const weight_t* __restrict__ matrix, const float* __restrict__ scales, out_t* __restrict__ out,
         int m, int n) {
    const int lane = threadIdx.x % 32, first = (blockIdx.x * WARPS + threadIdx.x / 32) * OF_WEIGHT, row = blockIdx.y * each;
    float sums[each][OF_WEIGHT] = {};
    unsigned nans[OF_WEIGHT] = {};
    for (int begin = lane * vec; begin < k; begin += 32 * vec * LOADS) {
        Pack<weight_t> held[LOADS][OF_WEIGHT];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * 32 * vec;
#pragma unroll
            for (int j = 0; j < OF_WEIGHT; ++j) {  // beyond the last row the last again, for a sum that nobody stores
                if (at < k) held[l][j] = *reinterpret_cast<const Pack<weight_t>*>(matrix + (long long)min(first + j, n - 1) * k + at);
                else held[l][j] = Pack<weight_t>{};
            }
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * 32 * vec;
            if (at >= k) continue;
            float values[OF_WEIGHT][vec];
#pragma unroll
            for (int j = 0; j < OF_WEIGHT; ++j) widen(values[j], held[l][j]), nans[j] |= nan_bits(held[l][j]);
#pragma unroll
            for (int i = 0; i < each; ++i) {
                const Pack<x_t> other = *reinterpret_cast<const Pack<x_t>*>(x + (long long)min(row + i, m - 1) * k + at);
#pragma unroll
                for (int j = 0; j < OF_WEIGHT; ++j) {
                    float some = 0.0f;  // sums of sums are more exact
#pragma unroll
                    for (int e = 0; e < vec; ++e) some = fmaf(values[j][e], float(other.at[e]), some);
                    sums[i][j] += some;
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
#pragma unroll
        for (int j = 0; j < OF_WEIGHT; ++j) {
            float sum = nans[j] ? NAN : sums[i][j];
#pragma unroll
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (lane == 0 && first + j < n && row + i < m) out[(long long)(row + i) * n + first + j] = out_t(sum * 256.0f * scales[first + j]);
        }
    }
}
