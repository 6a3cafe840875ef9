/*---
op = "depthwise_conv2d_backward_data"
note = "a thread takes a strip of neighbouring columns of one image and marches down its rows: each row of grad_out is read once, adds to all rows of grad_x that it reaches, whose sums wait in registers and move on with the first product of each, and finishes one of them; the next rows are on their way meanwhile"
when = "stride == 1 and r <= 7 and s <= 8 and r * s <= 49 and padding < r and padding < s and height * width < 2147483648"
specialize = ["padding", "r", "s", "channels", "height", "width", "oh", "ow", "per", "vin", "vout", "chunks", "bands", "band", "splits"]
require = ["per * r <= 112"]

[knobs]
PER = [8, 4, 16]
THREADS = [64, 32, 128]
RESIDENT = [768, 512, 1536]

[let]
full = "16 // itemsize(grad_out)"
narrow = "max(0, min(1, 17 - width)) * max(0, min(1, 99 - width * r))"
per = "narrow * width + (1 - narrow) * PER"
of_per = "1 + (1 - min(1, per % 2)) + 2 * (1 - min(1, per % 4)) + 4 * (1 - min(1, per % 8))"
vin = "min(full, 1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8)), of_per)"
vout = "min(full, 1 + (1 - min(1, width % 2)) + 2 * (1 - min(1, width % 4)) + 4 * (1 - min(1, width % 8)), of_per)"
chunks = "ceil_div(width, per)"
bands = "max(1, min(height // 8, RESIDENT * sms // (channels * batch * chunks)))"
band = "ceil_div(height, bands)"
splits = "ceil_div(batch * chunks * bands, THREADS)"

[[launch]]
entry = "march"
grid = ["channels * splits"]
block = ["THREADS"]
args = ["grad_out", "weight", "grad_x", "batch"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Of grad_out, and of grad_x.
constexpr int H = oh, W = ow, TALL = height, WIDE = width, PY = r - 1 - padding, PX = s - 1 - padding;
constexpr bool WHOLE = chunks == 1;  // a strip is a whole row: what lies beside it is known to be zero
constexpr int LEFT = WHOLE ? 0 : (PX + vin - 1) / vin * vin, REACH = per + s - 1 - PX;
constexpr int RIGHT = WHOLE && REACH > W ? W : REACH, PACKS = (LEFT + RIGHT + vin - 1) / vin;
constexpr int AHEAD = r <= 3 ? 2 : 1;  // rows on their way

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
struct Row { Words<grad_out_t, vin> at[PACKS]; };
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };

__device__ __forceinline__ void fetch(Row& to, const grad_out_t* __restrict__ plane, int y, int column, bool inside) {
#pragma unroll
    for (int b = 0; b < PACKS; ++b) {
        const int col = column - LEFT + b * vin;
        to.at[b].clear();
        if (inside && y >= 0 && y < H && col >= 0 && col < W) to.at[b].load(plane + (long long)y * W + col);
    }
}

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void store(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

extern "C" __global__ void __launch_bounds__(THREADS)
march(const grad_out_t* __restrict__ grad_out, const weight_t* __restrict__ weight, grad_x_t* __restrict__ grad_x, int batch) {
    const int channel = blockIdx.x % channels, split = blockIdx.x / channels, item = split * THREADS + threadIdx.x;
    const int column = item % chunks * per, first = item / chunks % bands * band, image = item / (chunks * bands);
    if (image >= batch) return;
    const int end = first + band < TALL ? first + band : TALL;  // of the rows to be made
    const long long plane = (long long)image * channels + channel;
    const grad_out_t* const values = grad_out + plane * H * W;
    grad_x_t* const results = grad_x + plane * TALL * WIDE;
    float taps[r][s];
#pragma unroll
    for (int i = 0; i < r; ++i) {
#pragma unroll
        for (int j = 0; j < s; ++j) taps[i][j] = float(weight[(channel * r + (r - 1 - i)) * s + (s - 1 - j)]);
    }
    const int last = end - PY + r - 1;  // the row behind the last that is needed
    Row coming[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) fetch(coming[a], values, first - PY + a, column, first - PY + a < last);
    float sum[r][per] = {};  // of the results' rows y + PY - i
#pragma unroll 1
    for (int y = first - PY; y < last; ++y) {
        const Row row = coming[0];
#pragma unroll
        for (int a = 0; a + 1 < AHEAD; ++a) coming[a] = coming[a + 1];
        fetch(coming[AHEAD - 1], values, y + AHEAD, column, y + AHEAD < last);
        float value[per + s - 1];
#pragma unroll
        for (int c = 0; c < per + s - 1; ++c) {
            const int at = LEFT + c - PX;
            value[c] = at >= 0 && at < PACKS * vin ? row.at[at / vin].value(at % vin) : 0.0f;
        }
#pragma unroll
        for (int i = r - 1; i >= 0; --i) {
#pragma unroll
            for (int v = 0; v < per; ++v) {
                float some = i > 0 ? sum[i > 0 ? i - 1 : 0][v] : 0.0f;
#pragma unroll
                for (int j = 0; j < s; ++j) {
                    const int col = v + j - PX;
                    if (WHOLE && (col < 0 || col >= W)) continue;
                    some = fmaf(taps[i][j], value[v + j], some);
                }
                sum[i][v] = some;
            }
        }
        const int made = y + PY - (r - 1);
        if (made < first) continue;
#pragma unroll
        for (int v = 0; v < per; v += vout) {
            Pack<grad_x_t, vout> result;
#pragma unroll
            for (int e = 0; e < vout; ++e) result.at[e] = grad_x_t(sum[r - 1][v + e]);
            if (column + v < WIDE) store(results + (long long)made * WIDE + column + v, result);
        }
    }
}
