/*---
op = "depthwise_conv2d_backward_weight"
note = "a thread takes a strip of neighbouring columns of one image and marches down its rows: each row of x is read once, while the rows of the gradient that it meets wait in registers, the next rows are on their way, and the sums of all taps never leave the registers; values wait as they came, in whole words; rows and columns that do not exist cost nothing; a second launch adds up the blocks in order"
when = "stride == 1 and r * s <= 49 and s <= 8 and r <= 7 and padding < r and padding < s and height * width < 2147483648"
specialize = ["padding", "r", "s", "channels", "height", "width", "oh", "ow", "per", "vin", "vout", "chunks", "bands", "band", "splits"]
require = ["per * r <= 128"]

[knobs]
PER = [8, 4, 16]
THREADS = [64, 32, 128]
RESIDENT = [512, 256, 1024]

[let]
full = "16 // itemsize(x)"
narrow = "max(0, min(1, 17 - ow)) * max(0, min(1, 99 - ow * r))"
per = "narrow * ow + (1 - narrow) * PER"
vin = "min(full, 1 + (1 - min(1, width % 2)) + 2 * (1 - min(1, width % 4)) + 4 * (1 - min(1, width % 8)), 1 + (1 - min(1, per % 2)) + 2 * (1 - min(1, per % 4)) + 4 * (1 - min(1, per % 8)))"
vout = "min(full, 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8)), 1 + (1 - min(1, per % 2)) + 2 * (1 - min(1, per % 4)) + 4 * (1 - min(1, per % 8)))"
chunks = "ceil_div(ow, per)"
bands = "max(1, min(height // 4, RESIDENT * sms // (channels * batch * chunks)))"
band = "ceil_div(height, bands)"
splits = "ceil_div(batch * chunks * bands, THREADS)"

[workspace]
parts = { shape = ["splits", "channels", "r * s + 1"], dtype = "float32" }

[[launch]]
entry = "sum_strips"
grid = ["channels * splits"]
block = ["THREADS"]
args = ["grad_out", "x", "parts", "batch"]

[[launch]]
entry = "add_parts"
grid = ["ceil_div(channels * (r * s + 1), 8)"]
block = [32, 8]
args = ["parts", "grad_weight", "grad_bias"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int H = height, W = width, OH = oh, OW = ow, SUMS = r * s + 1, WARPS = THREADS / 32;  // the last for the bias
constexpr bool WHOLE = chunks == 1;  // a strip is a whole row: what lies beside it is known not to exist
constexpr int LEFT = WHOLE ? 0 : (padding + vin - 1) / vin * vin, REACH = per + s - 1 - padding;
constexpr int RIGHT = WHOLE && REACH > W ? W : REACH, PACKS = (LEFT + RIGHT + vin - 1) / vin;

// Neighbouring values as they lie in memory, in whole words, which move from register to register without being taken apart.
template <class T, int N> struct Words {
    static constexpr int COUNT = sizeof(T) * N < 4 ? 1 : sizeof(T) * N / 4;
    unsigned at[COUNT];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int w = 0; w < COUNT; ++w) at[w] = 0;
    }
    __device__ __forceinline__ void load(const T* from) {
        if constexpr (sizeof(T) * N == 16) {
            const uint4 all = *reinterpret_cast<const uint4*>(from);
            at[0] = all.x, at[1] = all.y, at[2] = all.z, at[3] = all.w;
        } else if constexpr (sizeof(T) * N == 8) {
            const uint2 all = *reinterpret_cast<const uint2*>(from);
            at[0] = all.x, at[1] = all.y;
        } else if constexpr (sizeof(T) * N == 4) at[0] = *reinterpret_cast<const unsigned*>(from);
        else at[0] = *reinterpret_cast<const unsigned short*>(from);
    }
    __device__ __forceinline__ float value(int i) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(at[i]);
        else return widened(T{}, at[i / 2] >> i % 2 * 16);
    }
    static __device__ __forceinline__ float widened(__nv_bfloat16, unsigned low) { return __uint_as_float(low << 16); }
    static __device__ __forceinline__ float widened(__half, unsigned low) { return __half2float(__ushort_as_half(low)); }
    static __device__ __forceinline__ float widened(float, unsigned word) { return __uint_as_float(word); }
};
struct Row { Words<x_t, vin> at[PACKS]; };
struct Grads { Words<grad_out_t, vout> at[per / vout]; };

__device__ __forceinline__ void fetch(Row& to, const x_t* __restrict__ row, int column, bool inside) {
#pragma unroll
    for (int b = 0; b < PACKS; ++b) {
        const int col = column - LEFT + b * vin;
        to.at[b].clear();
        if (inside && col >= 0 && col < W) to.at[b].load(row + col);
    }
}

__device__ __forceinline__ void fetch(Grads& to, const grad_out_t* __restrict__ row, int column, bool inside) {
#pragma unroll
    for (int b = 0; b < per / vout; ++b) {
        to.at[b].clear();
        if (inside && column + b * vout < OW) to.at[b].load(row + column + b * vout);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_strips(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, float* __restrict__ parts, int batch) {
    __shared__ float sums[SUMS][WARPS];
    const int channel = blockIdx.x % channels, split = blockIdx.x / channels, item = split * THREADS + threadIdx.x;
    const int column = item % chunks * per, first = item / chunks % bands * band, image = item / (chunks * bands);
    const int end = image < batch ? (first + band < H ? first + band : H) : 0;
    const long long plane = (long long)(image < batch ? image : 0) * channels + channel;
    const x_t* const values = x + plane * H * W;
    const grad_out_t* const grads = grad_out + plane * OH * OW;
    const auto exists = [&](int y_out) { return y_out >= 0 && y_out < OH; };
    float sum[SUMS] = {};
    Grads window[r], coming;  // the rows of the gradient that the next row of x meets
    Row next;
    const auto count = [&](const Grads& row) {  // what does not exist is zero
#pragma unroll
        for (int v = 0; v < per; ++v) sum[r * s] += row.at[v / vout].value(v % vout);
    };
    fetch(next, values + (long long)first * W, column, first < end);
    fetch(coming, grads + (long long)(first + padding) * OW, column, first < end && exists(first + padding));
#pragma unroll
    for (int i = 1; i < r; ++i) {
        const int y_out = first + padding - i;
        fetch(window[i - 1], grads + (long long)y_out * OW, column, first < end && exists(y_out));
        if (first == 0) count(window[i - 1]);
    }
#pragma unroll 1
    for (int y = first; y < end; ++y) {
        const Row row = next;
#pragma unroll
        for (int i = r - 1; i > 0; --i) window[i] = window[i - 1];
        window[0] = coming;
        const bool more = y + 1 < end;
        fetch(next, values + (long long)(y + 1) * W, column, more);
        fetch(coming, grads + (long long)(y + 1 + padding) * OW, column, more && exists(y + 1 + padding));
        count(window[0]);
        float value[per + s - 1];
#pragma unroll
        for (int c = 0; c < per + s - 1; ++c) {
            const int at = LEFT + c - padding;
            if (at >= 0 && at < PACKS * vin) value[c] = row.at[at / vin].value(at % vin);
        }
#pragma unroll
        for (int i = 0; i < r; ++i) {
            if (!exists(y + padding - i)) continue;
#pragma unroll
            for (int j = 0; j < s; ++j) {
                float some = 0.0f;  // sums of sums are more exact
#pragma unroll
                for (int v = 0; v < per; ++v) {
                    const int col = v + j - padding;
                    if (WHOLE && (col < 0 || col >= W)) continue;
                    // Beyond the last output there may be NaN under a gradient of zero.
                    if (OW % per == 0 || column + v < OW) some = fmaf(window[i].at[v / vout].value(v % vout), value[v + j], some);
                }
                sum[i * s + j] += some;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
        if (threadIdx.x % 32 == 0) sums[i][threadIdx.x / 32] = sum[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS; i += THREADS) {
        float all = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) all += sums[i][warp];
        parts[((long long)split * channels + channel) * SUMS + i] = all;
    }
}

// A warp per sum.
extern "C" __global__ void __launch_bounds__(256)
add_parts(const float* __restrict__ parts, grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias) {
    const int at = blockIdx.x * 8 + threadIdx.y, channel = at / SUMS, tap = at % SUMS;
    float sum = 0.0f;
    for (int split = threadIdx.x; split < splits && channel < channels; split += 32) {
        sum += parts[(long long)split * channels * SUMS + at];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x > 0 || channel >= channels) return;
    if (tap < r * s) grad_weight[channel * (r * s) + tap] = grad_weight_t(sum);
    else grad_bias[channel] = grad_bias_t(sum);
}
