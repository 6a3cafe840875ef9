/*---
op = "conv1d"
note = "a product without the matrix, on tensor cores (wgmma): filters by pixels of the whole batch; a first launch lays images and filters out with channels innermost, filled up with zeros to runs of 2, 4 or 8, so that then each tap's channels come by cp.async from where a pixel's window has them, zeros around the image, through a ring in shared memory; two warpgroups multiply straight from there"
when = "taps <= 16 and batch * length < 2000000000 and batch * out_length < 2000000000"
dtypes = ["bfloat16", "float16"]
specialize = ["batch", "channels", "height", "width", "filters", "r", "s", "oh", "ow", "stride", "padding", "dilation", "part", "packed", "row", "tf", "tp", "columns", "two", "stages", "filter_tiles", "wide", "many", "image_blocks"]

[knobs]
STAGES = [4, 3]
COLUMNS = [256, 128]

[let]
height = "1"
width = "length"
r = "1"
s = "taps"
oh = "1"
ow = "out_length"
part = "2 + 2 * min(1, (channels - 1) // 2) + 4 * min(1, (channels - 1) // 4)"
packed = "ceil_div(channels, part) * part"
row = "ceil_div(r * s * packed, 8) * 8"
tf = "64 * min(2, ceil_div(filters, 64))"
filter_tiles = "ceil_div(filters, tf)"
columns = "min(COLUMNS, 128 * (tf // 64), 128 + 128 * min(1, filter_tiles * batch * oh * ow // (512 * sms)))"
two = "(2 - columns // 128) * (tf // 128)"
tp = "columns * (128 // tf)"
stage_bytes = "128 * (tf + tp)"
stages = "max(3, min(STAGES - two, 230000 // stage_bytes))"
wide = "min(64, packed)"
many = "4096 // wide // 8 * 8"
image_blocks = "batch * ceil_div(height * width, many) * ceil_div(packed, wide)"

[workspace]
images = { shape = ["batch * height * width", "packed"], dtype = "x" }
kernels = { shape = ["filters", "row"], dtype = "weight" }

[[launch]]
entry = "lay_out"
grid = ["image_blocks + ceil_div(filters * row, 256)"]
block = [256]
shared = "4 * many * (wide // 2 + 1)"
args = ["x", "weight", "images", "kernels"]

[[launch]]
entry = "convolve"
grid = ["filter_tiles * ceil_div(batch * oh * ow, tp)"]
block = [256]
shared = "1024 + stages * stage_bytes"
args = ["images", "kernels", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = x_t;
constexpr int PART = part, STEPS = (r * s * packed + 63) / 64, PIXELS = batch * oh * ow;
constexpr bool LAST = false;  // whether the channels of the results are innermost
constexpr int STAGE = 128 * (tf + tp), AHEAD = stages - 2;  // lines of 128 bytes
constexpr int FILTER_STEPS = tf / 32, PIXEL_STEPS = tp / 32, FILTER_PART = row % 8 == 0 ? 8 : row % 4 == 0 ? 4 : 2;

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

// d += 64 lines of a by the lines of b, 16 terms; the lines of both run along the sum.
__device__ __forceinline__ void multiply(const __nv_bfloat16*, float (&d)[128], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, add, 1, 1, 0, 0;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
        "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(const __half*, float (&d)[128], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, add, 1, 1, 0, 0;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
        "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(const __nv_bfloat16*, float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, add, 1, 1, 0, 0;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(const __half*, float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, add, 1, 1, 0, 0;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(add));
}

// A tile with lines of 128 bytes, whose pieces of 16 bytes change places within eight lines.
__device__ __forceinline__ unsigned long long tile_at(unsigned tile) { return 1ull << 62 | 64ull << 32 | 1ull << 16 | (tile & 0x3ffff) >> 4; }

// What 16 bits hold; the images and filters are only moved here.
template <int N> struct Run;
template <> struct Run<8> { using Raw = uint4; };
template <> struct Run<4> { using Raw = uint2; };
template <> struct Run<2> { using Raw = unsigned; };
template <> struct Run<1> { using Raw = unsigned short; };

__device__ __forceinline__ void move_filters(const T* __restrict__ weight, T* __restrict__ kernels, long long block) {
    const long long at = block * 256 + threadIdx.x;
    if (at >= (long long)filters * row) return;
    const int term = at % row, filter = at / row, tap = term / packed, channel = term % packed;
    const bool inside = tap < r * s && channel < channels;
    kernels[at] = inside ? weight[((long long)filter * channels + channel) * (r * s) + tap] : T(0.0f);
}

// A block turns `wide` channels of `many` places of an image; pairs of channels are words in shared memory.
extern "C" __global__ void __launch_bounds__(256)
lay_out(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ images, T* __restrict__ kernels) {
    extern __shared__ unsigned turned[];
    constexpr int PLACES = height * width, PER_IMAGE = ((PLACES + many - 1) / many) * ((packed + wide - 1) / wide);
    constexpr int RUN = PLACES % 8 == 0 ? 8 : PLACES % 4 == 0 ? 4 : PLACES % 2 == 0 ? 2 : 1, PITCH = wide / 2 + 1;
    if (blockIdx.x >= image_blocks) return move_filters(weight, kernels, blockIdx.x - image_blocks);
    const int image = blockIdx.x / PER_IMAGE, part = blockIdx.x % PER_IMAGE;
    const int first = part / ((packed + wide - 1) / wide) * many, first_channel = part % ((packed + wide - 1) / wide) * wide;
    const T* const from = x + (long long)image * channels * PLACES;
    for (int i = threadIdx.x; i < wide / 2 * (many / RUN); i += 256) {
        const int pair = i / (many / RUN), place = i % (many / RUN) * RUN;
        union { typename Run<RUN>::Raw raw; unsigned short each[RUN]; } low, high;
        low.raw = {}, high.raw = {};
        const int channel = first_channel + 2 * pair;
        if (first + place < PLACES) {
            const T* const here = from + (long long)channel * PLACES + first + place;
            if (channel < channels) low.raw = *reinterpret_cast<const typename Run<RUN>::Raw*>(here);
            if (channel + 1 < channels) high.raw = *reinterpret_cast<const typename Run<RUN>::Raw*>(here + PLACES);
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

// The filter values and window places that a step needs, 64 terms of the sum: taps, and within them channels.
extern "C" __global__ void __launch_bounds__(256, two + 1)
convolve(const T* __restrict__ images, const T* __restrict__ kernels, T* __restrict__ out) {
    extern __shared__ uint4 memory[];
    const unsigned start = (at(memory) + 1023) / 1024 * 1024;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = threadIdx.x % 8, line = threadIdx.x / 8;
    const int first_filter = blockIdx.x % filter_tiles * tf, first_pixel = blockIdx.x / filter_tiles * tp;
    const unsigned own = line * 128 + ((column ^ line % 8) * 16);  // pieces of eight neighbouring lines lie in different banks
    int origin[PIXEL_STEPS];     // of a pixel's window, as a place of the images
    unsigned seen[PIXEL_STEPS];  // which rows and columns of the window lie inside, in 16 bits each
#pragma unroll
    for (int i = 0; i < PIXEL_STEPS; ++i) {
        const int pixel = min(first_pixel + line + 32 * i, PIXELS - 1);
        const int y = pixel / ow % oh * stride, x0 = pixel % ow * stride - padding;
        origin[i] = (pixel / (oh * ow) * height + y) * width + x0;
        seen[i] = 0;
        if constexpr (padding > 0) {
            for (int j = 0; j < r; ++j) seen[i] |= (y + j * dilation >= 0 && y + j * dilation < height) ? 1u << j : 0;
            for (int j = 0; j < s; ++j) seen[i] |= (x0 + j * dilation >= 0 && x0 + j * dilation < width) ? 65536u << j : 0;
        }
    }
    const auto fetch = [&](int step) {
        if (step < STEPS) {
            const unsigned to = start + step % stages * STAGE + own, to_pixels = to + tf * 128;
            const int term = step * 64 + column * 8;
#pragma unroll
            for (int i = 0; i < FILTER_STEPS; ++i) {
                const int filter = first_filter + line + 32 * i;
                const T* const from = kernels + (long long)(filters % tf == 0 ? filter : min(filter, filters - 1)) * row;
#pragma unroll
                for (int e = 0; e < 8; e += FILTER_PART) {
                    const bool inside = row % 64 == 0 || term + e < row;
                    copy<FILTER_PART>(to + i * 32 * 128 + 2 * e, inside ? from + term + e : kernels, inside);
                }
            }
#pragma unroll
            for (int e = 0; e < 8; e += PART) {
                const int tap = (term + e) / packed, channel = (term + e) % packed, i = tap / s, j = tap % s;
                const int away = (i * width + j) * dilation;
                const unsigned need = 1u << i | 65536u << j;
                const bool known = r * s * packed % 64 == 0 || tap < r * s;
#pragma unroll
                for (int p = 0; p < PIXEL_STEPS; ++p) {
                    const bool inside = known && (padding == 0 || (seen[p] & need) == need);
                    const T* const from = images + (long long)(inside ? origin[p] + away : 0) * packed + channel;
                    copy<PART>(to_pixels + p * 32 * 128 + 2 * e, from, inside);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) fetch(step);
    // Two warpgroups: each has its own 64 filters, or its own pixels if there are no more.
    const int group = threadIdx.x / 128, group_filter = tf == 128 ? group * 64 : 0, group_pixel = tf == 128 ? 0 : group * columns;
    float sum[columns / 2] = {};
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        const unsigned tile = start + step % stages * STAGE;
        const unsigned long long left = tile_at(tile + group_filter * 128), right = tile_at(tile + (tf + group_pixel) * 128);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply(images, sum, left + 2 * k, right + 2 * k, 1);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        fetch(step + AHEAD);  // into the tiles of two steps ago, with which all warps are done
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    // Results go through shared memory, 16 filters of a warp, so that stores are wide.
    constexpr int ACROSS = LAST ? columns : 16, ALONG = LAST ? 16 : columns, PITCH = ALONG + 8;
    T* const staged = reinterpret_cast<T*>(memory) + warp * ACROSS * PITCH;
    const int filter0 = first_filter + group_filter + warp % 4 * 16, pixel0 = first_pixel + group_pixel;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int m = half * 8 + lane / 4;
#pragma unroll
        for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int n = j * 8 + lane % 4 * 2 + e;
                staged[LAST ? n * PITCH + m : m * PITCH + n] = T(sum[4 * j + 2 * half + e] + 0.0f);  // converted as it is, the compiler has each product waited for
            }
        }
    }
    __syncwarp();
    constexpr int LENGTH = LAST ? filters : oh * ow;  // as long as results lie side by side
    constexpr int RUN = LENGTH % 8 == 0 ? 8 : LENGTH % 4 == 0 ? 4 : LENGTH % 2 == 0 ? 2 : 1;
    struct alignas(2 * RUN) Results { T at[RUN]; };
#pragma unroll 4
    for (int index = lane; index < 16 * columns / RUN; index += 32) {
        const int across = index / (ALONG / RUN), along = index % (ALONG / RUN) * RUN;
        const int filter = filter0 + (LAST ? along : across), pixel = pixel0 + (LAST ? across : along);
        if (pixel >= PIXELS || filter >= filters) continue;
        const long long to = LAST ? (long long)pixel * filters + filter
                                  : ((long long)(pixel / (oh * ow)) * filters + filter) * (oh * ow) + pixel % (oh * ow);
        *reinterpret_cast<Results*>(out + to) = *reinterpret_cast<const Results*>(staged + across * PITCH + along);
    }
}
