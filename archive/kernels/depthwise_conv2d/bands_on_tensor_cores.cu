/*---
op = "depthwise_conv2d"
note = "on tensor cores: a row of the filter becomes a matrix of 16 columns of x by 8 outputs that holds it as a band, so that 16 rows of x times it add that row's part to 16 x 8 outputs; a warp keeps the bands of its channel in registers and goes through images, the next plane on its way into shared memory by cp.async, with zeros round it; a tile with NaN, as zeros of the matrix make of infinities, is computed again one by one"
when = "stride == 1 and r <= 8 and s + padding % 2 <= 9 and padding < r and padding < s and height * width <= 12544 and ow >= 4"
dtypes = ["bfloat16", "float16"]
specialize = ["batch", "channels", "height", "width", "oh", "ow", "r", "s", "padding", "shift", "left", "tiles", "pitch", "lines", "wide", "turns", "planes"]
require = ["WARPS * planes * lines * pitch * 16 <= 225000"]

[knobs]
WARPS = [2, 1, 4, 8]
IMAGES = [2, 1, 4, 8, 16]

[let]
shift = "padding + padding % 2"
left = "8 * min(1, shift)"
tiles = "ceil_div(ow - shift + left, 8)"
pitch = "tiles + 1 + tiles % 2"
lines = "ceil_div(oh, 16) * 16 + r - 1"
wide = "1 + (1 - min(1, width % 2)) + 2 * (1 - min(1, width % 4)) + 4 * (1 - min(1, width % 8))"
turns = "min(IMAGES, batch)"
planes = "min(2, turns)"
tasks = "channels * ceil_div(batch, turns)"

[[launch]]
entry = "convolve_bands"
grid = ["ceil_div(tasks, WARPS)"]
block = ["32 * WARPS"]
shared = "WARPS * planes * lines * pitch * 16"
args = ["x", "weight", "bias", "out", "tasks"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int PITCH = pitch * 8, LAYERS = (oh + 15) / 16, PLANE = lines * PITCH;  // in values
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mma(const __nv_bfloat16*, float (&d)[4], const unsigned (&a)[4], const uint2& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void mma(const __half*, float (&d)[4], const unsigned (&a)[4], const uint2& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void load_rows(unsigned (&a)[4], const x_t* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(at(from)) : "memory");
}

// A plane of x into the middle of its zeros; a lane moves as many values at once as a row is a multiple of.
__device__ __forceinline__ void fetch(x_t* to, const x_t* __restrict__ from, int lane) {
    constexpr int ROWS = height < lines - padding ? height : lines - padding;
    constexpr int COLS = width < (tiles + 1) * 8 - left ? width : (tiles + 1) * 8 - left, PIECES = (COLS + wide - 1) / wide;
#pragma unroll 4
    for (int i = lane; i < ROWS * PIECES; i += 32) {
        const int row = i / PIECES, col = i % PIECES * wide;
        x_t* const place = to + (row + padding) * PITCH + left + col;
        if constexpr (wide == 1) *place = from[row * width + col];
        else if constexpr (wide == 8) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(place)), "l"(from + row * width + col) : "memory");
        else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at(place)), "l"(from + row * width + col), "n"(wide == 4 ? 8 : 4) : "memory");
    }
}

__device__ __forceinline__ void put_pair(float*, float, float) {}
__device__ __forceinline__ void put_pair(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put_pair(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
convolve_bands(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
               out_t* __restrict__ out, int tasks) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, task = blockIdx.x * WARPS + warp;
    const int g = lane / 4, q = lane % 4;
    if (task >= tasks) return;  // the whole warp leaves
    const int channel = task % channels, first = task / channels * turns, count = min(turns, batch - first);
    x_t* const held = reinterpret_cast<x_t*>(memory) + warp * planes * PLANE;
    for (int i = lane; i < planes * PLANE / 8; i += 32) reinterpret_cast<uint4*>(held)[i] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    const auto plane = [&](int turn) { return ((long long)(first + turn) * channels + channel); };
    fetch(held, x + plane(0) * (height * width), lane);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const weight_t* const taps = weight + channel * (r * s);
    const float start = float(bias[channel]);
    uint2 bands[r];
#pragma unroll
    for (int i = 0; i < r; ++i) {
        weight_t some[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {  // column 2 q + e % 2 of the 16, from the 8th on for e > 1; output g
            const int j = 2 * q + e % 2 + e / 2 * 8 - g - (shift - padding);
            some[e] = j >= 0 && j < s ? taps[i * s + j] : weight_t(0.0f);
        }
        bands[i].x = *reinterpret_cast<const unsigned short*>(&some[0]) | unsigned(*reinterpret_cast<const unsigned short*>(&some[1])) << 16;
        bands[i].y = *reinterpret_cast<const unsigned short*>(&some[2]) | unsigned(*reinterpret_cast<const unsigned short*>(&some[3])) << 16;
    }
    for (int turn = 0; turn < count; ++turn) {
        if (turn + 1 < count) fetch(held + (turn + 1) % planes * PLANE, x + plane(turn + 1) * (height * width), lane);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
        const x_t* const now = held + turn % planes * PLANE;
        const x_t* const own = now + (lane % 16) * PITCH + lane / 16 * 8;
        out_t* const results = out + plane(turn) * (oh * ow);
        const auto finish = [&](float (&sum)[4], int layer, int tile) {
            const int col = tile * 8 + shift - left + 2 * q;
            const float all = sum[0] + sum[1] + sum[2] + sum[3];
            if (__any_sync(0xffffffffu, all != all)) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int line = layer * 16 + g + e / 2 * 8, from = tile * 8 + shift - padding + 2 * q + e % 2;
                    float part = 0.0f;
#pragma unroll 1
                    for (int i = 0; i < r; ++i) {
#pragma unroll 1
                        for (int j = 0; j < s; ++j) part = fmaf(float(taps[i * s + j]), float(now[(line + i) * PITCH + min(from + j, PITCH - 1)]), part);
                    }
                    sum[e] = start + part;
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = layer * 16 + half * 8 + g;
                if (line >= oh) continue;
                out_t* const to = results + line * ow + col;
                if constexpr (ow % 2 == 0) {
                    if (col >= 0 && col < ow) put_pair(to, sum[2 * half], sum[2 * half + 1]);
                } else {
                    if (col >= 0 && col < ow) to[0] = out_t(sum[2 * half]);
                    if (col + 1 >= 0 && col + 1 < ow) to[1] = out_t(sum[2 * half + 1]);
                }
            }
        };
#pragma unroll 1
        for (int layer = 0; layer < LAYERS; ++layer) {
            unsigned before[r][2];  // the first 8 columns of the next tile are the last of this one
#pragma unroll
            for (int i = 0; i < r; ++i) {
                unsigned rows[4];
                load_rows(rows, now + (layer * 16 + i + lane % 16) * PITCH);
                before[i][0] = rows[0], before[i][1] = rows[1];
            }
#pragma unroll 1
            for (int tile = 0; tile < tiles; tile += 2) {
                float sum[2][4];
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[0][e] = sum[1][e] = start;
#pragma unroll
                for (int i = 0; i < r; ++i) {
                    unsigned rows[4];
                    load_rows(rows, own + (layer * 16 + i) * PITCH + tile * 8 + 8);
                    const unsigned first_tile[4] = {before[i][0], before[i][1], rows[0], rows[1]};
                    mma(weight, sum[0], first_tile, bands[i]);
                    mma(weight, sum[1], rows, bands[i]);
                    before[i][0] = rows[2], before[i][1] = rows[3];
                }
                finish(sum[0], layer, tile);
                if (tile + 1 < tiles) finish(sum[1], layer, tile + 1);
            }
        }
        __syncwarp();  // the plane has been read
    }
}
