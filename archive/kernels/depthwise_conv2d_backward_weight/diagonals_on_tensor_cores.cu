/*---
op = "depthwise_conv2d_backward_weight"
note = "on tensor cores: 16 rows of 8 columns of the gradient times the same rows, moved by those of the filter, of the columns of x round them; the diagonals of these small matrices are the sums for the taps, and all places of all planes add to the same ones; ones beside x give the bias; a warp goes through images of its channel, the next planes on their way into its shared memory by cp.async, with zeros round them; a second launch adds up the warps in order"
when = "stride == 1 and r <= 7 and s <= 7 and padding < r and padding < s and width % 2 == 0 and ow % 2 == 0 and height <= 80 and width <= 80"
dtypes = ["bfloat16", "float16"]
specialize = ["batch", "channels", "height", "width", "oh", "ow", "r", "s", "padding", "left", "blocks", "met", "gpitch", "xpitch", "glines", "xwide", "gwide", "turns", "planes", "stage", "splits"]
require = ["WARPS * planes * stage * 16 <= 225000"]

[knobs]
WARPS = [1, 2, 4]
IMAGES = [4, 2, 8, 16]
STAGES = [2, 3]

[let]
left = "min(1, padding)"
met = "1 + left + min(1, s - 1 - padding)"
blocks = "ceil_div(ow, 8)"
gpitch = "blocks + 1 - blocks % 2"
need = "blocks + met - 1"
xpitch = "need + 1 - need % 2"
glines = "ceil_div(oh, 8) * 8"
xwide = "1 + (1 - min(1, width % 2)) + 2 * (1 - min(1, width % 4)) + 4 * (1 - min(1, width % 8))"
gwide = "1 + (1 - min(1, ow % 2)) + 2 * (1 - min(1, ow % 4)) + 4 * (1 - min(1, ow % 8))"
turns = "min(batch, IMAGES * (1 + min(3, 1024 // (height * width))))"
splits = "ceil_div(batch, turns)"
planes = "min(STAGES, turns)"
stage = "glines * gpitch + (glines + r - 1) * xpitch"

[workspace]
parts = { shape = ["splits", "channels", "r * s + 1"], dtype = "float32" }

[[launch]]
entry = "sum_planes"
grid = ["ceil_div(channels * splits, WARPS)"]
block = ["32 * WARPS"]
shared = "WARPS * planes * stage * 16"
args = ["grad_out", "x", "parts"]

[[launch]]
entry = "add_parts"
grid = ["ceil_div(channels * (r * s + 1), 8)"]
block = [32, 8]
args = ["parts", "grad_weight", "grad_bias"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// `met` blocks of 8 columns of x meet one of the gradient, for two rows of the filter at once; beside the last of an
// odd number of rows there are ones.
constexpr int SUMS = r * s + 1, PAIRS = (r + 1) / 2, XPITCH = xpitch * 8, GPITCH = gpitch * 8;
constexpr bool ODD = r % 2 > 0;
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mma(const __nv_bfloat16*, float (&d)[4], const unsigned (&a)[4],
                                    const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(const __half*, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ unsigned two_ones(const __nv_bfloat16*) { return 0x3f803f80u; }
__device__ __forceinline__ unsigned two_ones(const __half*) { return 0x3c003c00u; }

// Four matrices of 8 rows of 8 columns, the last two from the 9th row on, or zeros.
template <bool HALF> __device__ __forceinline__ void load(unsigned (&to)[4], const x_t* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at(from)) : "memory");
    if constexpr (HALF) to[2] = to[3] = 0;
}

// A plane into the middle of its zeros; a lane moves as many values at once as a row is a multiple of.
template <int ROWS, int COLS, int WIDE, int PITCH>
__device__ __forceinline__ void fetch(x_t* to, const x_t* __restrict__ from, int lane) {
    constexpr int PIECES = COLS / WIDE;
    unsigned place = at(to + lane / PIECES * PITCH + lane % PIECES * WIDE);
    int piece = lane % PIECES;
    from += lane * WIDE;
#pragma unroll 4
    for (int i = lane; i < ROWS * PIECES; i += 32) {
        if constexpr (WIDE == 8) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(WIDE * 2) : "memory");
        }
        from += 32 * WIDE;
        piece += 32 % PIECES, place += (32 / PIECES * PITCH + 32 % PIECES * WIDE) * 2;
        if (piece >= PIECES) piece -= PIECES, place += (PITCH - COLS) * 2;
    }
}

// What 16 rows, or 8, of the gradient add.
template <bool HALF>
__device__ __forceinline__ void add_rows(float (&sum)[met][PAIRS][4], float (&bias)[4], const x_t* grads,
                                         const x_t* values, const x_t* ones, int lane) {
    // A lane's row for the four matrices: two rows of the filter, and then both 8 rows lower; the gradient's blocks go
    // the other way round.
    const int low = HALF ? 0 : lane / 16 * 8, next = lane / 8 % 2;
    values += (lane % 8 + low + next) * XPITCH;
    const x_t* const last = ODD && next > 0 ? ones : values + (PAIRS - 1) * 2 * XPITCH;
    grads += (lane % 8 + (HALF ? 0 : next * 8)) * GPITCH + lane / 16 * 8;
    const unsigned all_ones[4] = {two_ones(values), two_ones(values), two_ones(values), two_ones(values)};
    unsigned held[met][PAIRS][4], grad[4];
    const auto load_block = [&](int c) {
#pragma unroll
        for (int pair = 0; pair + 1 < PAIRS; ++pair) {
            load<HALF>(held[c % met][pair], values + pair * 2 * XPITCH + c * 8);
        }
        load<HALF>(held[c % met][PAIRS - 1], last + c * 8);
    };
#pragma unroll
    for (int c = 0; c + 1 < met; ++c) load_block(c);
#pragma unroll
    for (int u = 0; u < blocks; ++u) {
        if (u % 2 == 0) load<false>(grad, grads + u * 8);
        const unsigned own[2] = {grad[u % 2 * 2], HALF ? 0 : grad[u % 2 * 2 + 1]};
        load_block(u + met - 1);
#pragma unroll
        for (int b = 0; b < met; ++b) {
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) mma(values, sum[b][pair], held[(u + b) % met][pair], own);
        }
        if constexpr (!ODD) mma(values, bias, all_ones, own);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
sum_planes(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, float* __restrict__ parts) {
    __shared__ float diagonals[WARPS][met * 64];
    __shared__ alignas(16) x_t all_ones[WARPS][XPITCH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, task = blockIdx.x * WARPS + warp;
    if (task >= channels * splits) return;  // the whole warp leaves
    const int channel = task % channels, first = task / channels * turns, count = min(turns, batch - first);
    uint4* const own = memory + warp * planes * stage;
    for (int i = lane; i < planes * stage; i += 32) own[i] = make_uint4(0, 0, 0, 0);
    for (int i = lane; i < XPITCH; i += 32) all_ones[warp][i] = x_t(1.0f);
    __syncwarp();
    const auto plane = [&](int turn) { return (long long)(first + turn) * channels + channel; };
    const auto grads_of = [&](int turn) { return reinterpret_cast<x_t*>(own + turn % planes * stage); };
    const auto values_of = [&](int turn) { return grads_of(turn) + glines * GPITCH; };
    const auto request = [&](int turn) {
        if (turn < count) {
            x_t* const middle = values_of(turn) + padding * XPITCH + left * 8;
            fetch<oh, ow, gwide, GPITCH>(grads_of(turn), grad_out + plane(turn) * (oh * ow), lane);
            fetch<height, width, xwide, XPITCH>(middle, x + plane(turn) * (height * width), lane);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int turn = 0; turn + 1 < planes; ++turn) request(turn);
    float sum[met][PAIRS][4] = {}, of_bias[4] = {};
#pragma unroll 1
    for (int turn = 0; turn < count; ++turn) {
        request(turn + planes - 1);
        asm volatile("cp.async.wait_group %0;" ::"n"(planes - 1) : "memory");
        __syncwarp();
        const x_t *const grads = grads_of(turn), *const values = values_of(turn);
#pragma unroll 1
        for (int y = 0; y + 16 <= glines; y += 16) {
            add_rows<false>(sum, of_bias, grads + y * GPITCH, values + y * XPITCH, all_ones[warp], lane);
        }
        if constexpr (glines % 16 > 0) {
            constexpr int Y = glines - 8;
            add_rows<true>(sum, of_bias, grads + Y * GPITCH, values + Y * XPITCH, all_ones[warp], lane);
        }
        __syncwarp();  // the planes have been read
    }
    float* const to = parts + (long long)task * SUMS;
    bool again = false;  // products with a zero that is no value may be NaN: then all sums are made from what exists
#pragma unroll
    for (int i = 0; i < r; ++i) {
#pragma unroll
        for (int b = 0; b < met; ++b) {
            const float(&of)[4] = sum[b][i / 2];
            float2* const place = reinterpret_cast<float2*>(diagonals[warp] + b * 64) + lane;
            *place = make_float2(of[i % 2 * 2], of[i % 2 * 2 + 1]);
        }
        __syncwarp();
        if (lane < s) {  // column n of the gradient meets column n + lane - padding of x
            float all = 0.0f;
#pragma unroll
            for (int n = 0; n < 8; ++n) all += diagonals[warp][(n + lane - padding + left * 8) * 8 + n];
            to[i * s + lane] = all;
            again |= !(fabsf(all) <= FLT_MAX);
        }
        __syncwarp();
    }
    float bias = ODD ? sum[0][PAIRS - 1][2] + sum[0][PAIRS - 1][3] : of_bias[0] + of_bias[1];
    bias += __shfl_xor_sync(0xffffffffu, bias, 1);
    bias += __shfl_xor_sync(0xffffffffu, bias, 2);
    if (lane == 0) to[r * s] = bias;
    if (!__any_sync(0xffffffffu, again)) return;
    __syncwarp();
#pragma unroll 1
    for (int tap = 0; tap < r * s; ++tap) {
        float all = 0.0f;
        for (int turn = 0; turn < count; ++turn) {
            float some = 0.0f;  // sums of sums are more exact
            const grad_out_t* const grads = grad_out + plane(turn) * (oh * ow);
            const x_t* const values = x + plane(turn) * (height * width);
            for (int i = lane; i < oh * ow; i += 32) {
                const int y = i / ow - padding + tap / s, col = i % ow - padding + tap % s;
                if (y < 0 || y >= height || col < 0 || col >= width) continue;
                some = fmaf(float(grads[i]), float(values[y * width + col]), some);
            }
            all += some;
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
        if (lane == 0) to[tap] = all;
    }
}

// A warp per sum.
extern "C" __global__ void __launch_bounds__(256)
add_parts(const float* __restrict__ parts, grad_weight_t* __restrict__ grad_weight,
          grad_bias_t* __restrict__ grad_bias) {
    const int place = blockIdx.x * 8 + threadIdx.y, channel = place / SUMS, tap = place % SUMS;
    float sum = 0.0f;
    for (int split = threadIdx.x; split < splits && channel < channels; split += 32) {
        sum += parts[(long long)split * channels * SUMS + place];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x > 0 || channel >= channels) return;
    if (tap < r * s) grad_weight[channel * (r * s) + tap] = grad_weight_t(sum);
    else grad_bias[channel] = grad_bias_t(sum);
}
