/*---
op = "conv2d_backward_data"
note = "a convolution of the gradient with turned filters, whose channels are its filters, as a product on tensor cores (mma.sync): channels by pixels of the whole batch; a first launch lays images and filters out with channels innermost, filled up with zeros to runs of 2, 4 or 8, so that then each tap's channels come by cp.async from where a pixel's window has them, zeros around the image, through a ring in shared memory; each warp has 64 x 64 results"
when = "stride == 1 and padding < r and padding < s and r <= 16 and s <= 16 and batch * oh * ow < 2000000000 and batch * height * width < 2000000000"
dtypes = ["bfloat16", "float16"]
specialize = ["batch", "filters", "oh", "ow", "channels", "r", "s", "height", "width", "stride", "padding", "part", "packed", "row", "tf", "tp", "stages", "filter_tiles", "wide", "many", "image_blocks"]

[knobs]
STAGES = [3, 2, 4]
WARPS = [4, 8]

[let]
part = "2 + 2 * min(1, (filters - 1) // 2) + 4 * min(1, (filters - 1) // 4)"
packed = "ceil_div(filters, part) * part"
row = "ceil_div(r * s * packed, 8) * 8"
tf = "64 * min(2, ceil_div(channels, 64))"
tp = "4096 * WARPS // tf"
filter_tiles = "ceil_div(channels, tf)"
stage_bytes = "128 * (tf + tp)"
stages = "min(STAGES, 28672 * WARPS // stage_bytes)"
wide = "min(64, packed)"
many = "4096 // wide // 8 * 8"
image_blocks = "batch * ceil_div(oh * ow, many) * ceil_div(packed, wide)"

[workspace]
images = { shape = ["batch * oh * ow", "packed"], dtype = "grad_out" }
kernels = { shape = ["channels", "row"], dtype = "weight" }

[[launch]]
entry = "lay_out"
grid = ["image_blocks + ceil_div(channels * row, 256)"]
block = [256]
shared = "4 * many * (wide // 2 + 1)"
args = ["grad_out", "weight", "images", "kernels"]

[[launch]]
entry = "multiply"
grid = ["filter_tiles * ceil_div(batch * height * width, tp)"]
block = ["32 * WARPS"]
shared = "stages * stage_bytes"
args = ["images", "kernels", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = grad_out_t;
constexpr int PART = part, STEPS = (r * s * packed + 63) / 64, PIXELS = batch * height * width;
constexpr bool LAST = false;  // whether the channels of the results are innermost: then pixels are the left factor
constexpr int LEFT = LAST ? tp : tf, RIGHT = LAST ? tf : tp, STAGE = 128 * (tf + tp);  // lines of 128 bytes
constexpr int EACH = 4 * WARPS, FILTER_STEPS = tf / EACH, PIXEL_STEPS = tp / EACH, FILTER_PART = row % 8 == 0 ? 8 : row % 4 == 0 ? 4 : 2;

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// N values, or zeros.
template <int N> __device__ __forceinline__ void copy(unsigned to, const T* from, bool inside) {
    if constexpr (N == 8) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
    } else if constexpr (N == 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(inside ? 8 : 0) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(inside ? 4 : 0) : "memory");
    }
}

__device__ __forceinline__ void load4(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void mma(const __nv_bfloat16*, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(const __half*, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// What 16 bits hold; the images and channels are only moved here.
template <int N> struct Run;
template <> struct Run<8> { using Raw = uint4; };
template <> struct Run<4> { using Raw = uint2; };
template <> struct Run<2> { using Raw = unsigned; };
template <> struct Run<1> { using Raw = unsigned short; };

__device__ __forceinline__ void move_filters(const T* __restrict__ weight, T* __restrict__ kernels, long long block) {
    const long long at = block * 256 + threadIdx.x;
    if (at >= (long long)channels * row) return;
    const int term = at % row, filter = at / row, tap = term / packed, channel = term % packed;
    const bool inside = tap < r * s && channel < filters;
    kernels[at] = inside ? weight[((long long)channel * channels + filter) * (r * s) + (r * s - 1 - tap)] : T(0.0f);
}

// A block turns `wide` filters of `many` places of an image; pairs of filters are words in shared memory.
extern "C" __global__ void __launch_bounds__(256)
lay_out(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ images, T* __restrict__ kernels) {
    extern __shared__ unsigned turned[];
    constexpr int PLACES = oh * ow, PER_IMAGE = ((PLACES + many - 1) / many) * ((packed + wide - 1) / wide);
    constexpr int RUN = PLACES % 8 == 0 ? 8 : PLACES % 4 == 0 ? 4 : PLACES % 2 == 0 ? 2 : 1, PITCH = wide / 2 + 1;
    if (blockIdx.x >= image_blocks) return move_filters(weight, kernels, blockIdx.x - image_blocks);
    const int image = blockIdx.x / PER_IMAGE, part = blockIdx.x % PER_IMAGE;
    const int first = part / ((packed + wide - 1) / wide) * many, first_channel = part % ((packed + wide - 1) / wide) * wide;
    const T* const from = x + (long long)image * filters * PLACES;
    for (int i = threadIdx.x; i < wide / 2 * (many / RUN); i += 256) {
        const int pair = i / (many / RUN), place = i % (many / RUN) * RUN;
        union { typename Run<RUN>::Raw raw; unsigned short each[RUN]; } low, high;
        low.raw = {}, high.raw = {};
        const int channel = first_channel + 2 * pair;
        if (first + place < PLACES) {
            const T* const here = from + (long long)channel * PLACES + first + place;
            if (channel < filters) low.raw = *reinterpret_cast<const typename Run<RUN>::Raw*>(here);
            if (channel + 1 < filters) high.raw = *reinterpret_cast<const typename Run<RUN>::Raw*>(here + PLACES);
        }
#pragma unroll
        for (int e = 0; e < RUN; ++e) turned[(place + e) * PITCH + pair] = low.each[e] | unsigned(high.each[e]) << 16;
    }
    __syncthreads();
    unsigned* const to = reinterpret_cast<unsigned*>(images) + (long long)image * PLACES * (packed / 2);
    constexpr int WORDS = PART / 2;
    for (int i = threadIdx.x; i < many * (wide / PART); i += 256) {
        const int place = i / (wide / PART), word = i % (wide / PART) * WORDS;
        if (first + place >= PLACES || first_channel + 2 * word >= packed) continue;
        union { typename Run<PART>::Raw raw; unsigned each[WORDS]; } made;
#pragma unroll
        for (int e = 0; e < WORDS; ++e) made.each[e] = turned[place * PITCH + word + e];
        *reinterpret_cast<typename Run<PART>::Raw*>(to + (long long)(first + place) * (packed / 2) + first_channel / 2 + word) = made.raw;
    }
}

// The filter values and window places that a step needs, 64 terms of the sum: taps, and within them filters.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
multiply(const T* __restrict__ images, const T* __restrict__ kernels, T* __restrict__ out) {
    extern __shared__ uint4 memory[];
    const unsigned start = at(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = threadIdx.x % 8, line = threadIdx.x / 8;
    const int first_filter = blockIdx.x % filter_tiles * tf, first_pixel = blockIdx.x / filter_tiles * tp;
    const unsigned own = line * 128 + ((column ^ line % 8) * 16);  // pieces of eight neighbouring lines lie in different banks
    int origin[PIXEL_STEPS];     // of a pixel's window, as a place of the images
    unsigned seen[PIXEL_STEPS];  // which rows and columns of the window lie inside, in 16 bits each
#pragma unroll
    for (int i = 0; i < PIXEL_STEPS; ++i) {
        const int pixel = min(first_pixel + line + EACH * i, PIXELS - 1);
        const int y = pixel / width % height * stride - (r - 1 - padding), x0 = pixel % width * stride - (s - 1 - padding);
        origin[i] = (pixel / (height * width) * oh + y) * ow + x0;
        seen[i] = 0;
        if constexpr (r - 1 - padding > 0 || s - 1 - padding > 0) {
            for (int j = 0; j < r; ++j) seen[i] |= (y + j >= 0 && y + j < oh) ? 1u << j : 0;
            for (int j = 0; j < s; ++j) seen[i] |= (x0 + j >= 0 && x0 + j < ow) ? 65536u << j : 0;
        }
    }
    const auto fetch = [&](int step) {
        if (step < STEPS) {
            const unsigned to = start + step % stages * STAGE + own, to_filters = to + (LAST ? tp * 128 : 0), to_pixels = to + (LAST ? 0 : tf * 128);
            const int term = step * 64 + column * 8;
#pragma unroll
            for (int i = 0; i < FILTER_STEPS; ++i) {
                const int filter = first_filter + line + EACH * i;
                const T* const from = kernels + (long long)(channels % tf == 0 ? filter : min(filter, channels - 1)) * row;
#pragma unroll
                for (int e = 0; e < 8; e += FILTER_PART) {
                    const bool inside = row % 64 == 0 || term + e < row;
                    copy<FILTER_PART>(to_filters + i * EACH * 128 + 2 * e, inside ? from + term + e : kernels, inside);
                }
            }
#pragma unroll
            for (int e = 0; e < 8; e += PART) {
                const int tap = (term + e) / packed, channel = (term + e) % packed, i = tap / s, j = tap % s;
                const int away = (i * ow + j);
                const unsigned need = 1u << i | 65536u << j;
                const bool known = r * s * packed % 64 == 0 || tap < r * s;
#pragma unroll
                for (int p = 0; p < PIXEL_STEPS; ++p) {
                    const bool inside = known && ((r - 1 - padding <= 0 && s - 1 - padding <= 0) || (seen[p] & need) == need);
                    const T* const from = images + (long long)(inside ? origin[p] + away : 0) * packed + channel;
                    copy<PART>(to_pixels + p * EACH * 128 + 2 * e, from, inside);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int step = 0; step < stages - 1; ++step) fetch(step);
    constexpr int ACROSS = RIGHT / 64;  // warps along the columns; each has 64 x 64 results
    const int warp_m = warp / ACROSS, warp_n = warp % ACROSS;
    const unsigned left_part = (warp_m * 64 + lane % 16) * 128, left_piece = (lane / 16 ^ lane % 8) * 16;
    const unsigned right_part = (LEFT + warp_n * 64 + lane / 16 * 8 + lane % 8) * 128, right_piece = (lane / 8 % 2 ^ lane % 8) * 16;
    float sum[4][8][4] = {};
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
        __syncthreads();
        fetch(step + stages - 1);
        const unsigned tile = start + step % stages * STAGE;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            unsigned a[4][4], b[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) load4(a[i], tile + left_part + i * 16 * 128 + (left_piece ^ k * 32));
#pragma unroll
            for (int j = 0; j < 4; ++j) load4(b[j], tile + right_part + j * 16 * 128 + (right_piece ^ k * 32));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 8; ++j) mma(images, sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    struct alignas(4) Two { T at[2]; };
    constexpr int PITCH = 72;
    T* const staged = reinterpret_cast<T*>(memory) + warp * 64 * PITCH;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int here = i * 16 + half * 8 + lane / 4;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                Two made;
                made.at[0] = T(sum[i][j][2 * half]), made.at[1] = T(sum[i][j][2 * half + 1]);
                *reinterpret_cast<Two*>(staged + here * PITCH + j * 8 + lane % 4 * 2) = made;
            }
        }
    }
    __syncwarp();
    constexpr int LENGTH = LAST ? channels : height * width;  // as long as results lie side by side
    constexpr int RUN = LENGTH % 8 == 0 ? 8 : LENGTH % 4 == 0 ? 4 : LENGTH % 2 == 0 ? 2 : 1;
    struct alignas(2 * RUN) Results { T at[RUN]; };
#pragma unroll 4
    for (int index = lane; index < 64 * 64 / RUN; index += 32) {
        const int m = index / (64 / RUN), n = index % (64 / RUN) * RUN;
        const int pixel = first_pixel + (LAST ? warp_m * 64 + m : warp_n * 64 + n), filter = first_filter + (LAST ? warp_n * 64 + n : warp_m * 64 + m);
        if (pixel >= PIXELS || filter >= channels) continue;
        const long long to = LAST ? (long long)pixel * channels + filter
                                  : ((long long)(pixel / (height * width)) * channels + filter) * (height * width) + pixel % (height * width);
        *reinterpret_cast<Results*>(out + to) = *reinterpret_cast<const Results*>(staged + m * PITCH + n);
    }
}
