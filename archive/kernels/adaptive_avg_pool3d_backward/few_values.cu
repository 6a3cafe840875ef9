/*---
op = "adaptive_avg_pool3d_backward"
note = "a plane has few different gradients: a block works them out once in shared memory, and a thread looks up once where those of its 16 bytes are, for as many equal stretches of planes as the block has"
when = "od * oh * ow <= 1024 and 4 * od * oh * ow <= d * h * w and d * h * w <= 1048576"
specialize = ["d", "h", "w", "od", "oh", "ow", "planes", "packs", "slices", "slice", "span"]
require = ["held <= 196608"]

[knobs]
THREADS = [256, 128, 512]
ITEMS = [2, 1, 4]
GROUPS = [4, 2, 8]
PER_SM = [8, 4]

[let]
area = "d * h * w"
full = "16 // itemsize(grad_x)"
unit = "max(1, full // (1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8))))"
planes = "unit * max(1, THREADS * ITEMS * full // (unit * area))"
packs = "planes * area // full"
slices = "ceil_div(packs, THREADS * ITEMS)"
slice = "ceil_div(packs, slices)"
span = "min(planes, (slice * full + area - 2) // area + 1)"
kinds_d = "od + min(1, d % od) * (min(d, 2 * od - 1) - od)"
kinds_h = "oh + min(1, h % oh) * (min(h, 2 * oh - 1) - oh)"
kinds_w = "ow + min(1, w % ow) * (min(w, 2 * ow - 1) - ow)"
uneven = "min(1, d % od + h % oh + w % ow)"
held = "span * (uneven * od * oh * ow * 4 + kinds_d * kinds_h * kinds_w * itemsize(grad_x))"
sets = "ceil_div(n * c, planes)"
groups = "max(1, min(min(GROUPS, 24576 // held), slices * sets // (sms * PER_SM)))"

[[launch]]
entry = "look_up"
grid = ["slices * ceil_div(sets, groups)"]
block = ["THREADS"]
shared = "groups * held"
args = ["grad_out", "grad_x", "n * c", "groups"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(grad_x_t), LOADS = 8;
struct alignas(16) Vec { grad_x_t at[VEC]; };

// Places of an axis that lie in the same windows are of one kind. Where windows are equal, their number is the kind;
// else the sum of the first and the last window's, or the place itself if there are fewer places than such sums.
template <int SIZE, int COUNT> struct Axis {
    static constexpr bool EVEN = SIZE % COUNT == 0, EACH = SIZE < 2 * COUNT;
    static constexpr int KINDS = EVEN ? COUNT : EACH ? SIZE : 2 * COUNT - 1;
    static __device__ __forceinline__ unsigned first_with(unsigned place) { return place * COUNT / SIZE; }
    static __device__ __forceinline__ unsigned last_with(unsigned place) { return ((place + 1) * COUNT - 1) / SIZE; }
    static __device__ __forceinline__ int kind_of(unsigned place) {
        if constexpr (EVEN) return place / (SIZE / COUNT);
        else if constexpr (EACH) return place;
        else return first_with(place) + last_with(place);
    }
    static __device__ __forceinline__ int first_of(int kind) {
        return EVEN ? kind : EACH ? first_with(kind) : kind / 2;
    }
    static __device__ __forceinline__ int last_of(int kind) {
        return EVEN ? kind : EACH ? last_with(kind) : (kind + 1) / 2;
    }
    static __device__ __forceinline__ int length_of(unsigned o) {
        return EVEN ? SIZE / COUNT : ((o + 1) * SIZE + COUNT - 1) / COUNT - o * SIZE / COUNT;
    }
};

constexpr int D = d, H = h, W = w, OD = od, OH = oh, OW = ow;
using Z = Axis<D, OD>;
using Y = Axis<H, OH>;
using X = Axis<W, OW>;
constexpr int ALL = D * H * W, OUT = OD * OH * OW, KINDS = Z::KINDS * Y::KINDS * X::KINDS;
constexpr bool EVEN = Z::EVEN && Y::EVEN && X::EVEN;
extern __shared__ float memory[];

// Where the kinds of a row are, rows counted from the first plane of the slice.
__device__ __forceinline__ int start_of(unsigned row) {
    const int z = Z::kind_of(row / H % D), y = Y::kind_of(row % H);
    return row / (D * H) * KINDS + (z * Y::KINDS + y) * X::KINDS;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
look_up(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long all, int groups) {
    const int begin = blockIdx.x % slices * slice, end = min(begin + slice, packs), lead = begin * VEC / ALL;
    const long long first = (long long)(blockIdx.x / slices) * groups * planes;  // of the block's planes
    const int own = int(min((long long)groups * planes, all - first)), parts = groups * span;
    grad_x_t* const table = reinterpret_cast<grad_x_t*>(memory + (EVEN ? 0 : parts * OUT));
    const grad_out_t* const from = grad_out + first * OUT;
    // Part i of a slice, as a plane of the block: the slice has `span` planes in each group.
    const auto plane_of = [&](int i) { return slices == 1 ? i : i / span * planes + lead + i % span; };
    for (int base = threadIdx.x; base < parts * OUT; base += THREADS * LOADS) {
        grad_out_t grads[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = base + i * THREADS, plane = plane_of(at / OUT);
            grads[i] = at < parts * OUT && plane < own ? from[plane * OUT + at % OUT] : grad_out_t(0.0f);
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = base + i * THREADS, o = at % OUT;
            if (at >= parts * OUT) continue;
            const int size = Z::length_of(o / (OH * OW)) * Y::length_of(o / OW % OH) * X::length_of(o % OW);
            const float quotient = float(grads[i]) / size;
            if constexpr (EVEN) table[at] = grad_x_t(quotient);
            else memory[at] = quotient;
        }
    }
    if constexpr (!EVEN) {
        __syncthreads();
        for (int at = threadIdx.x; at < parts * KINDS; at += THREADS) {
            const int kind = at % KINDS, z = kind / (Y::KINDS * X::KINDS), y = kind / X::KINDS % Y::KINDS;
            const int x = kind % X::KINDS;
            const float* const quotients = memory + at / KINDS * OUT;
            float sum = 0.0f;
            for (int i = Z::first_of(z); i <= Z::last_of(z); ++i) {
                for (int j = Y::first_of(y); j <= Y::last_of(y); ++j) {
                    for (int k = X::first_of(x); k <= X::last_of(x); ++k) sum += quotients[(i * OH + j) * OW + k];
                }
            }
            table[at] = grad_x_t(sum);
        }
    }
    __syncthreads();
    grad_x_t* const to = grad_x + first * ALL;  // a multiple of 16 bytes
    for (int pack = begin + threadIdx.x; pack < end; pack += THREADS) {
        const unsigned place = pack * VEC - lead * ALL;
        int spots[VEC];
        if constexpr (KINDS == 1) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) spots[e] = (place + e) / ALL;
        } else if constexpr (W >= VEC) {  // the elements lie in two rows
            const unsigned row = place / W, x = place % W;
            const int here = start_of(row), next = start_of(row + 1);
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                const bool beyond = x + e >= W;
                spots[e] = (beyond ? next : here) + X::kind_of(beyond ? x + e - W : x + e);
            }
        } else {
#pragma unroll
            for (int e = 0; e < VEC; ++e) spots[e] = start_of((place + e) / W) + X::kind_of((place + e) % W);
        }
        const grad_x_t* values = table;
#pragma unroll 2
        for (int g = 0; g < groups; ++g, values += span * KINDS) {
            const int at = (g * packs + pack) * VEC;
            if (at + VEC <= own * ALL) {
                Vec result;
#pragma unroll
                for (int e = 0; e < VEC; ++e) result.at[e] = values[spots[e]];
                *reinterpret_cast<Vec*>(to + at) = result;
            } else {
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    if (at + e < own * ALL) to[at + e] = values[spots[e]];
                }
            }
        }
    }
}
