/*---
op = "lstm_cell_backward"
note = "warpgroups (wgmma) with tiles by tensor maps (TMA), in two launches: all gates' sums of a block's units in registers, from them the gates' gradients in the inputs' dtype; then the gradients of inputs and of weights, in one list of tiles of 128 x 128, split along the sum where tiles are few; sums leave the tensor cores after every 64 terms; for any width, the matrices are first copied into lines of a multiple of 16 bytes"
when = "itemsize(x) == 2 and (input % 8 != 0 or hidden % 8 != 0)"
dtypes = ["bfloat16"]
specialize = ["input", "hidden", "wide_x", "wide_h", "units", "groups", "stages", "shares", "splits"]

[knobs]
KIB = [192, 128]
UNITS = [64, 32]
SPLITS = [1, 2]

[let]
wide_x = "ceil_div(input, 8) * 8"
wide_h = "ceil_div(hidden, 8) * 8"
groups = "1 + min(1, (batch - 1) // 64)"
blocks_m = "ceil_div(batch, 64 * groups)"
enough = "min(1, 2 * blocks_m * ceil_div(hidden, 64) // (sms + 1))"
units = "min(UNITS, 32 + 32 * enough)"
blocks = "blocks_m * ceil_div(hidden, units)"
stages = "KIB * 1024 // (128 * (64 * groups + 4 * units))"
parts = "4 * groups * blocks_m"
columns = "ceil_div(input, 128) + ceil_div(hidden, 128)"
lines = "ceil_div(batch, 128)"
steps = "4 * ceil_div(hidden, 64)"
shares = "ceil_div(steps, max(1, min(steps // 8, SPLITS * sms // (lines * columns))))"
splits = "ceil_div(steps, shares)"
split_lines = "max(1, min(1, splits - 1) * splits * batch)"
products = "lines * columns * splits + 4 * ceil_div(hidden, 128) * columns"

[workspace]
back = { shape = ["batch", 4, "wide_h"], dtype = "x" }
bias_parts = { shape = ["parts", 4, "hidden"], dtype = "float32" }
split_sums = { shape = ["split_lines", "input + hidden"], dtype = "float32" }
even_x = { shape = ["batch", "wide_x"], dtype = "x" }
even_h = { shape = ["batch", "wide_h"], dtype = "x" }
even_w_ih = { shape = ["gates", "wide_x"], dtype = "x" }
even_w_hh = { shape = ["gates", "wide_h"], dtype = "x" }

[tensor_maps]
x_map = { tensor = "even_x", shape = [1, "batch", "wide_x"], box = [1, 64, 64], swizzle = 128 }
h_map = { tensor = "even_h", shape = [1, "batch", "wide_h"], box = [1, 64, 64], swizzle = 128 }
w_ih_map = { tensor = "even_w_ih", shape = [4, "hidden", "wide_x"], box = [1, 32, 64], swizzle = 128 }
w_hh_map = { tensor = "even_w_hh", shape = [4, "hidden", "wide_h"], box = [1, 32, 64], swizzle = 128 }
back_map = { tensor = "back", shape = ["batch", 4, "wide_h"], box = [64, 1, 64], swizzle = 128 }

[[launch]]
entry = "widen"
grid = ["batch + gates", 2]
block = [128]
args = ["x", "h", "w_ih", "w_hh", "even_x", "even_h", "even_w_ih", "even_w_hh", "batch"]

[[launch]]
entry = "gates_back"
grid = ["min(blocks, sms)"]
block = ["128 + 128 * groups"]
shared = "1024 + stages * 128 * (64 * groups + 4 * units) + 16 * stages"
args = ["x_map", "h_map", "w_ih_map", "w_hh_map", "b_ih", "b_hh", "c", "c_next", "grad_h_next", "grad_c_next", "grad_c", "back", "bias_parts", "batch", "blocks_m", "blocks"]

[[launch]]
entry = "multiply_all"
grid = ["min(products, sms)"]
block = [384]
shared = "1024 + 6 * 32768 + 96"
args = ["x_map", "h_map", "w_ih_map", "w_hh_map", "back_map", "bias_parts", "grad_x", "grad_h", "grad_w_ih", "grad_w_hh", "grad_b_ih", "grad_b_hh", "split_sums", "batch", "lines", "parts", "products"]

[[launch]]
entry = "add_splits"
grid = ["min(1, splits - 1) * ceil_div(batch * (input + hidden), 256)"]
block = [256]
args = ["split_sums", "grad_x", "grad_h", "batch"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = x_t;
using Tile = unsigned long long;
constexpr int GATES = 4, COLUMNS = GATES * units, CHUNK = 128, LINES = 64 * groups;
constexpr int BLOCK = 8192;  // 64 lines of 128 bytes
constexpr int A_BYTES = 128 * LINES, STAGE_BYTES = A_BYTES + 128 * COLUMNS;
constexpr int OF_X = (input + 63) / 64, OF_H = (hidden + 63) / 64;
constexpr int WIDE_X = (input + 127) / 128, WIDE_H = (hidden + 127) / 128;
constexpr bool LARGE = groups == 2 && units == 64;  // sums need more registers than a thread's even share
extern __shared__ uint4 memory[];

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void begin(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait(unsigned barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void load(unsigned to, const CUtensorMap* map, int column, int line, int block,
                                     unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
        ::"r"(to), "l"(map), "r"(column), "r"(line), "r"(block), "r"(barrier) : "memory");
}

// d += 64 lines of a by the columns of b, 16 terms; the names say which factors' lines run across the sum.
__device__ __forceinline__ void multiply(const __nv_bfloat16*, float (&d)[64], Tile a, Tile b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 0, 0;\n}"
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
__device__ __forceinline__ void multiply(const __half*, float (&d)[64], Tile a, Tile b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 0, 0;\n}"
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
__device__ __forceinline__ void multiply_by_across(const __nv_bfloat16*, float (&d)[64], Tile a, Tile b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 0, 1;\n}"
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
__device__ __forceinline__ void multiply_by_across(const __half*, float (&d)[64], Tile a, Tile b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 0, 1;\n}"
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
__device__ __forceinline__ void multiply_across(const __nv_bfloat16*, float (&d)[64], Tile a, Tile b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 1, 1;\n}"
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
__device__ __forceinline__ void multiply_across(const __half*, float (&d)[64], Tile a, Tile b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 1, 1;\n}"
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

// A tile of lines of 128 bytes, whose pieces of 16 bytes change places within eight lines.
__device__ __forceinline__ Tile tile_at(unsigned tile) {  // blocks of 64 columns across the sum are BLOCK apart
    return 1ull << 62 | 64ull << 32 | (Tile)(BLOCK / 16) << 16 | (tile & 0x3ffff) >> 4;
}
__device__ __forceinline__ void start_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

__device__ __forceinline__ float sigmoid_of(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float tanh_of(float x) {  // 1 - 2 / (exp(2x) + 1) has too few digits near 0
    const float y = x * x, third = fmaf(fmaf(fmaf(y, 62.0f / 2835, -17.0f / 315), y, 2.0f / 15), y, -1.0f / 3);
    return fabsf(x) < 0.25f ? fmaf(x * y, third, x) : 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f);
}
struct Yes { static constexpr int value = 1; };
struct No { static constexpr int value = 0; };
struct alignas(4) Two { T at[2]; };
// Two neighbours of a line, of which the second may not exist.
__device__ __forceinline__ Two two_of(const T* from, bool both) { return {{from[0], both ? from[1] : T(0.0f)}}; }
__device__ __forceinline__ void put(T* to, float one, float other, bool both) {
    to[0] = T(one);
    if (both) to[1] = T(other);
}

// Copies a line to where lines are a multiple of 16 bytes long, with zeros at its end.
extern "C" __global__ void __launch_bounds__(128)
widen(const T* __restrict__ x, const T* __restrict__ h, const T* __restrict__ w_ih, const T* __restrict__ w_hh,
      T* __restrict__ even_x, T* __restrict__ even_h, T* __restrict__ even_w_ih, T* __restrict__ even_w_hh, int batch) {
    const bool of_h = blockIdx.y == 1, of_weight = blockIdx.x >= batch;
    const long long line = of_weight ? blockIdx.x - batch : blockIdx.x;
    const int width = of_h ? hidden : input, wide = of_h ? wide_h : wide_x;
    const T* const from = (of_weight ? of_h ? w_hh : w_ih : of_h ? h : x) + line * width;
    T* const to = (of_weight ? of_h ? even_w_hh : even_w_ih : of_h ? even_h : even_x) + line * wide;
    for (int piece = threadIdx.x; piece < wide / 8; piece += 128) {
        struct alignas(16) Eight { T at[8]; } some;
#pragma unroll
        for (int i = 0; i < 8; ++i) some.at[i] = piece * 8 + i < width ? from[piece * 8 + i] : T(0.0f);
        reinterpret_cast<Eight*>(to)[piece] = some;
    }
}

// The gates' gradients, and their sums over 16 lines each.
extern "C" __global__ void __launch_bounds__(128 + 128 * groups, 1)
gates_back(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap h_map,
           const __grid_constant__ CUtensorMap w_ih_map, const __grid_constant__ CUtensorMap w_hh_map,
           const T* __restrict__ b_ih, const T* __restrict__ b_hh,
           const T* __restrict__ c, const T* __restrict__ c_next,
           const T* __restrict__ grad_h_next, const T* __restrict__ grad_c_next,
           T* __restrict__ grad_c, T* __restrict__ back, float* __restrict__ bias_parts,
           int batch, int blocks_m, int blocks) {
    const unsigned tiles = at(memory) + (1024 - at(memory) % 1024) % 1024;
    const unsigned full = tiles + stages * STAGE_BYTES, empty = full + 8 * stages;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < stages; ++stage) begin(full + 8 * stage, 1), begin(empty + 8 * stage, groups);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group == groups) {  // one thread of it fetches
        if constexpr (LARGE) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x % 128 != 0) return;
        int count = 0;
        for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
            const int line0 = block % blocks_m * LINES, unit0 = block / blocks_m * units;
            for (int step = 0; step < OF_X + OF_H; ++step, ++count) {
                const int stage = count % stages, k = 64 * (step < OF_X ? step : step - OF_X);
                const unsigned to = tiles + stage * STAGE_BYTES, here = full + 8 * stage;
                wait(empty + 8 * stage, count / stages % 2 ^ 1);
                expect(here, STAGE_BYTES);
                for (int i = 0; i < groups; ++i)
                    load(to + i * BLOCK, step < OF_X ? &x_map : &h_map, k, line0 + 64 * i, 0, here);
                for (int i = 0; i < COLUMNS / 32; ++i)
                    load(to + A_BYTES + i * BLOCK / 2, step < OF_X ? &w_ih_map : &w_hh_map, k,
                         unit0 + i % (units / 32) * 32, i / (units / 32), here);
            }
        }
        return;
    }
    if constexpr (LARGE) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int count = 0;
    for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
        float sum[4][units / 8][4] = {};  // of the gates
        const auto multiply_step = [&](int stage) {
            const unsigned tile = tiles + stage * STAGE_BYTES;
            wait(full + 8 * stage, count / stages % 2);
            const Tile a = tile_at(tile + group * BLOCK), b = tile_at(tile + A_BYTES);
#pragma unroll
            for (int chunk = 0; chunk < COLUMNS / CHUNK; ++chunk) {
                float part[CHUNK / 2];  // tensor cores cut off the last bits at each addition: keep sums short
                start_products();
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    multiply((const T*)nullptr, part, a + 2 * k, b + chunk * CHUNK * 8 + 2 * k, k > 0);
                end_products();
                if (chunk == COLUMNS / CHUNK - 1 && threadIdx.x % 128 == 0) arrive(empty + 8 * stage);
#pragma unroll
                for (int i = 0; i < CHUNK / 2; ++i) {
                    const int piece = chunk * CHUNK / 8 + i / 4, gate = piece / (units / 8);
                    sum[gate][piece % (units / 8)][i % 4] += part[i];
                }
            }
        };
#pragma unroll 1
        for (int step = 0; step < OF_X + OF_H; ++step, ++count) multiply_step(count % stages);
        const int line0 = block % blocks_m * LINES + warp * 16 + lane / 4;
        const int unit0 = block / blocks_m * units + lane % 4 * 2;
        Two given[4][2][4];  // read for 4 pieces of 8 units at once, so that latencies overlap
#pragma unroll
        for (int j = 0; j < units / 8; ++j) {
#pragma unroll
            for (int next = j; next < (j % 4 == 0 ? j + 4 : j); ++next) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int unit = min(unit0 + 8 * next, hidden - 1);
                    const long long here = (long long)min(line0 + 8 * half, batch - 1) * hidden + unit;
                    given[next % 4][half][0] = two_of(c + here, unit + 1 < hidden);
                    given[next % 4][half][1] = two_of(c_next + here, unit + 1 < hidden);
                    given[next % 4][half][2] = two_of(grad_h_next + here, unit + 1 < hidden);
                    given[next % 4][half][3] = two_of(grad_c_next + here, unit + 1 < hidden);
                }
            }
            const int unit = unit0 + 8 * j;
            float found[4][4], bias[4][2], other[4];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int own = min(unit + e, hidden - 1);
#pragma unroll
                for (int gate = 0; gate < 4; ++gate)
                    bias[gate][e] = float(b_ih[gate * hidden + own]) + float(b_hh[gate * hidden + own]);
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const Two(&from)[4] = given[j % 4][e / 2];
                float gate[4], of[4];
#pragma unroll
                for (int g = 0; g < 4; ++g) gate[g] = sum[g][j][e] + bias[g][e % 2];
#pragma unroll
                for (int i = 0; i < 4; ++i) of[i] = float(from[i].at[e % 2]);
                const float i = sigmoid_of(gate[0]), f = sigmoid_of(gate[1]), g = tanh_of(gate[2]);
                const float o = sigmoid_of(gate[3]), tanh_c = tanh_of(of[1]);
                const float grad = of[3] + of[2] * o * (1 - tanh_c * tanh_c);
                found[0][e] = grad * g * i * (1 - i), found[1][e] = grad * of[0] * f * (1 - f);
                found[2][e] = grad * i * (1 - g * g), found[3][e] = of[2] * tanh_c * o * (1 - o), other[e] = grad * f;
                if (line0 + e / 2 * 8 >= batch || unit + e % 2 >= hidden) {
#pragma unroll
                    for (int g = 0; g < 4; ++g) found[g][e] = 0.0f;
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const long long line = line0 + 8 * half;
                if (line >= batch || unit >= wide_h) continue;
#pragma unroll
                for (int g = 0; g < 4; ++g)
                    *reinterpret_cast<Two*>(back + (line * 4 + g) * wide_h + unit) =
                        {{T(found[g][2 * half]), T(found[g][2 * half + 1])}};
                if (unit >= hidden) continue;
                put(grad_c + line * hidden + unit, other[2 * half], other[2 * half + 1], unit + 1 < hidden);
            }
#pragma unroll
            for (int g = 0; g < 4; ++g) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float total = found[g][e] + found[g][e + 2];
#pragma unroll
                    for (int far = 4; far < 32; far *= 2) total += __shfl_xor_sync(0xffffffffu, total, far);
                    const long long part = block % blocks_m * groups * 4 + warp;
                    if (lane < 4 && unit + e < hidden) bias_parts[(part * 4 + g) * hidden + unit + e] = total;
                }
            }
        }
    }
}

// A tile of 128 x 128 of a gradient: of inputs (sums over gates and units) or of weights (sums over the batch).
struct Place { int line, column, gate, first, count, split; bool of_h, of_weights; };
__device__ __forceinline__ Place place_of(int tile, int batch, int lines) {
    constexpr int STEPS = GATES * OF_H;
    const int of_inputs = lines * (WIDE_X + WIDE_H) * splits;
    Place to;
    to.of_weights = tile >= of_inputs;
    const int own = to.of_weights ? tile - of_inputs : tile, high = to.of_weights ? GATES * WIDE_H : lines;
    const int m = own % high, n = own / high % (WIDE_X + WIDE_H);
    to.split = to.of_weights ? 0 : own / high / (WIDE_X + WIDE_H);
    to.of_h = n >= WIDE_X, to.column = (to.of_h ? n - WIDE_X : n) * 128;
    to.gate = to.of_weights ? m / WIDE_H : 0, to.line = (to.of_weights ? m % WIDE_H : m) * 128;
    to.first = to.split * shares;
    to.count = to.of_weights ? (batch + 63) / 64 : min(shares, STEPS - to.first);
    return to;
}

extern "C" __global__ void __launch_bounds__(384, 1)
multiply_all(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap h_map,
             const __grid_constant__ CUtensorMap w_ih_map, const __grid_constant__ CUtensorMap w_hh_map,
             const __grid_constant__ CUtensorMap back_map, const float* __restrict__ bias_parts,
             T* __restrict__ grad_x, T* __restrict__ grad_h,
             T* __restrict__ grad_w_ih, T* __restrict__ grad_w_hh, T* __restrict__ grad_b_ih, T* __restrict__ grad_b_hh,
             float* __restrict__ split_sums, int batch, int lines, int parts, int products) {
    constexpr int SLOTS = 6, SLOT = 4 * BLOCK;
    const unsigned tiles = at(memory) + (1024 - at(memory) % 1024) % 1024;
    const unsigned full = tiles + SLOTS * SLOT, empty = full + 8 * SLOTS;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) begin(full + 8 * slot, 1), begin(empty + 8 * slot, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group == 2) {
        if (threadIdx.x % 128 >= 32) {  // three warps sum the biases' gradients
            for (int own = blockIdx.x * 96 + threadIdx.x % 128 - 32; own < GATES * hidden; own += gridDim.x * 96) {
                float sum = 0.0f;
                for (int first = 0; first < parts; first += 64) {
                    float piece = 0.0f;
#pragma unroll 8
                    for (int part = first; part < min(first + 64, parts); ++part)
                        piece += bias_parts[part * 4ll * hidden + own];
                    sum += piece;
                }
                grad_b_ih[own] = grad_b_hh[own] = T(sum);
            }
            return;
        }
        if (threadIdx.x % 128 != 0) return;
        int count = 0;  // one thread fetches
        for (int tile = blockIdx.x; tile < products; tile += gridDim.x) {
            const Place place = place_of(tile, batch, lines);
            for (int step = place.first; step < place.first + place.count; ++step, ++count) {
                const int slot = count % SLOTS, gate = place.of_weights ? place.gate : step / OF_H;
                const int k = (place.of_weights ? step : step % OF_H) * 64;
                const int of_gate = gate;
                const unsigned to = tiles + slot * SLOT, here = full + 8 * slot;
                wait(empty + 8 * slot, count / SLOTS % 2 ^ 1);
                expect(here, SLOT);
                for (int i = 0; i < 2; ++i) {
                    const int next = place.line + 64 * i, column = place.column + 64 * i;
                    const unsigned right = to + (2 + i) * BLOCK;
                    if (place.of_weights) {
                        load(to + i * BLOCK, &back_map, next, of_gate, k, here);
                        load(right, place.of_h ? &h_map : &x_map, column, k, 0, here);
                    } else {
                        load(to + i * BLOCK, &back_map, k, of_gate, next, here);
                        const CUtensorMap* const weights = place.of_h ? &w_hh_map : &w_ih_map;
                        load(right, weights, column, k, gate, here);
                        load(right + BLOCK / 2, weights, column, k + 32, gate, here);
                    }
                }
            }
        }
        return;
    }
    int count = 0;
    for (int tile = blockIdx.x; tile < products; tile += gridDim.x) {
        const Place place = place_of(tile, batch, lines);
        float sum[64] = {};
        const auto run = [&](auto across) {  // two loops: in one, the compiler would wait for each product
#pragma unroll 1
            for (int step = 0; step < place.count; ++step, ++count) {
                const int slot = count % SLOTS;
                const unsigned from = tiles + slot * SLOT;
                wait(full + 8 * slot, count / SLOTS % 2);
                const Tile a = tile_at(from + group * BLOCK), b = tile_at(from + 2 * BLOCK);
                float part[64];
                start_products();
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    if constexpr (decltype(across)::value) {
                        multiply_across((const T*)nullptr, part, a + 128 * k, b + 128 * k, k > 0);
                    } else {
                        multiply_by_across((const T*)nullptr, part, a + 2 * k, b + 128 * k, k > 0);
                    }
                }
                end_products();
                if (threadIdx.x % 128 == 0) arrive(empty + 8 * slot);
#pragma unroll
                for (int i = 0; i < 64; ++i) sum[i] += part[i];
            }
        };
        if (place.of_weights) run(Yes{});
        else run(No{});
        const int lane = threadIdx.x % 32, line0 = place.line + threadIdx.x / 32 * 16 + lane / 4;
        const int width = place.of_h ? hidden : input;
        const auto put_split = [&](int i, int line, int column, bool both) {
            const long long row = (long long)place.split * batch + line;
            float* const half = split_sums + row * (input + hidden) + (place.of_h ? input : 0) + column;
            half[0] = sum[2 * i];
            if (both) half[1] = sum[2 * i + 1];
        };
        T* const to = place.of_weights ? place.of_h ? grad_w_hh : grad_w_ih : place.of_h ? grad_h : grad_x;
#pragma unroll
        for (int i = 0; i < 32; ++i) {  // pairs
            const int line = line0 + i % 2 * 8, column = place.column + i / 2 * 8 + lane % 4 * 2;
            if (line >= (place.of_weights ? hidden : batch) || column >= width) continue;
            const bool both = column + 1 < width;
            if (splits > 1 && !place.of_weights) {
                put_split(i, line, column, both);
                continue;
            }
            const long long here = (place.gate * (long long)hidden + line) * width + column;
            put(to + here, sum[2 * i], sum[2 * i + 1], both);
        }
    }
}


extern "C" __global__ void __launch_bounds__(256)
add_splits(const float* __restrict__ split_sums, T* __restrict__ grad_x,
           T* __restrict__ grad_h, int batch) {
    const long long all = (long long)batch * (input + hidden), own = blockIdx.x * 256ll + threadIdx.x;
    if (own >= all) return;
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) sum += split_sums[split * all + own];
    const long long line = own / (input + hidden), column = own % (input + hidden);
    if (column < input) grad_x[line * input + column] = T(sum);
    else grad_h[line * hidden + column - input] = T(sum);
}
