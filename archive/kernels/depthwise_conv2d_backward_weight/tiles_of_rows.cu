/*---
op = "depthwise_conv2d_backward_weight"
note = "a block takes some of a channel's output rows in all images; a thread reads 2 to 8 neighbouring gradients and the stretches of x under them by the widest loads, and keeps the sums of all taps in registers; a second launch adds up the blocks, always in the same order"
when = "r * s <= 49 and s <= 8 and stride <= 4 and padding < r and padding < s and height * width < 2147483648"
specialize = ["stride", "padding", "r", "s", "channels", "height", "width", "oh", "ow", "per", "vin", "vout", "chunks", "splits", "share"]

[knobs]
PER = [8, 2, 4]
THREADS = [128, 256]
BLOCKS = [8, 4, 16]

[let]
full = "16 // itemsize(x)"
per = "PER // (1 + min(1, s * stride // 16))"
step = "per * stride"
vin = "min(full, min(1 + (1 - min(1, width % 2)) + 2 * (1 - min(1, width % 4)) + 4 * (1 - min(1, width % 8)), 1 + (1 - min(1, step % 2)) + 2 * (1 - min(1, step % 4)) + 4 * (1 - min(1, step % 8))))"
vout = "min(full, min(per, 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8))))"
chunks = "ceil_div(ow, per)"
tiles = "batch * oh * chunks"
splits = "max(1, min(ceil_div(tiles, THREADS), ceil_div(sms * BLOCKS, channels)))"
share = "ceil_div(tiles, splits)"

[workspace]
parts = { shape = ["splits", "channels", "r * s + 1"], dtype = "float32" }

[[launch]]
entry = "sum_tiles"
grid = ["channels * splits"]
block = ["THREADS"]
args = ["grad_out", "x", "parts", "tiles"]

[[launch]]
entry = "add_parts"
grid = ["ceil_div(channels * (r * s + 1), 8)"]
block = [32, 8]
args = ["parts", "grad_weight", "grad_bias"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int H = height, W = width, OH = oh, OW = ow, SUMS = r * s + 1, WARPS = THREADS / 32;  // the last for the bias
constexpr int SPAN = (per - 1) * stride + s;
constexpr int RIGHT = SPAN - padding > 0 ? SPAN - padding : 0;
constexpr int EXTRA = RIGHT % vin;
constexpr int PACKS = RIGHT / vin + (EXTRA > 2);
constexpr int SINGLE = EXTRA > 2 ? 0 : EXTRA;

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
// What the outputs of a thread need of one row: before, in and behind the stretch that begins where they do.
struct Row { x_t left[padding + 1]; Pack<x_t, vin> body[PACKS + 1]; x_t right[SINGLE + 1]; };

__device__ __forceinline__ void fetch(Row& to, const x_t* __restrict__ row, int begin, bool inside) {
    const x_t none = x_t(0.0f);
#pragma unroll
    for (int p = 0; p < padding; ++p) {
        const int col = begin - padding + p;
        to.left[p] = inside && col >= 0 && col < W ? row[col] : none;
    }
#pragma unroll
    for (int b = 0; b < PACKS; ++b) {
        const int col = begin + b * vin;
        if (inside && col < W) {
            to.body[b] = *reinterpret_cast<const Pack<x_t, vin>*>(row + col);
        } else {
#pragma unroll
            for (int e = 0; e < vin; ++e) to.body[b].at[e] = none;
        }
    }
#pragma unroll
    for (int p = 0; p < SINGLE; ++p) {
        const int col = begin + PACKS * vin + p;
        to.right[p] = inside && col < W ? row[col] : none;
    }
}

__device__ __forceinline__ float value_of(const Row& row, int i) {
    if (i < padding) return float(row.left[i]);
    if (i - padding < PACKS * vin) return float(row.body[(i - padding) / vin].at[(i - padding) % vin]);
    return float(row.right[i - padding - PACKS * vin]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_tiles(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, float* __restrict__ parts, int tiles) {
    __shared__ float sums[SUMS][WARPS];
    const int channel = blockIdx.x % channels, split = blockIdx.x / channels;
    float sum[SUMS] = {};
    for (int tile = split * share + threadIdx.x; tile < min(tiles, (split + 1) * share); tile += THREADS) {
        const int column = tile % chunks * per, line = tile / chunks, y_out = line % OH;
        const long long plane = (long long)(line / OH) * channels + channel;
        const grad_out_t* grads = grad_out + (plane * OH + y_out) * OW;
        float grad[per];
#pragma unroll
        for (int v = 0; v < per; v += vout) {
            Pack<grad_out_t, vout> held{};
            if (column + v < OW) held = *reinterpret_cast<const Pack<grad_out_t, vout>*>(grads + column + v);
#pragma unroll
            for (int e = 0; e < vout; ++e) grad[v + e] = float(held.at[e]), sum[r * s] += grad[v + e];
        }
        Row rows[r];
#pragma unroll
        for (int i = 0; i < r; ++i) {
            const int y = y_out * stride - padding + i;
            const bool inside = y >= 0 && y < H;
            fetch(rows[i], x + (plane * H + (inside ? y : 0)) * W, column * stride, inside);
        }
#pragma unroll
        for (int i = 0; i < r; ++i) {
#pragma unroll
            for (int j = 0; j < s; ++j) {
                float some = 0.0f;  // sums of sums are more exact
#pragma unroll
                for (int v = 0; v < per; ++v) {
                    // Beyond the last output there may be NaN under a gradient of zero.
                    if (column + v < OW) some = fmaf(grad[v], value_of(rows[i], v * stride + j), some);
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
