/*---
op = "lstm_cell"
note = "warpgroups (wgmma): one warp has a ring of tiles of x and then of h, and of the weights, filled by tensor maps (TMA); a block's columns are all gates of its units, so that a thread has the gates of its units in registers and finishes them there; sums leave the tensor cores after every 64 terms"
when = "itemsize(x) == 2 and input % 8 == 0 and hidden % 8 == 0"
dtypes = ["bfloat16", "float16"]
specialize = ["input", "hidden", "units", "groups", "stages"]

[knobs]
KIB = [200, 100, 144]
UNITS = [64, 32]

[let]
groups = "1 + min(1, (batch - 1) // 64)"
blocks_m = "ceil_div(batch, 64 * groups)"
enough_32 = "min(1, 2 * blocks_m * ceil_div(hidden, 32) // (sms + 1))"
enough_64 = "min(1, 2 * blocks_m * ceil_div(hidden, 64) // (sms + 1))"
units = "min(UNITS, 16 + 16 * enough_32 + 32 * enough_64)"
blocks = "blocks_m * ceil_div(hidden, units)"
stage_bytes = "128 * (64 * groups + 4 * units)"
stages = "KIB * 1024 // stage_bytes"

[tensor_maps]
x_map = { tensor = "x", shape = ["batch", "input"], box = ["64 * groups", 64], swizzle = 128 }
h_map = { tensor = "h", shape = ["batch", "hidden"], box = ["64 * groups", 64], swizzle = 128 }
w_ih_map = { tensor = "w_ih", shape = ["gates", "input"], box = ["units", 64], swizzle = 128 }
w_hh_map = { tensor = "w_hh", shape = ["gates", "hidden"], box = ["units", 64], swizzle = 128 }

[[launch]]
entry = "cell"
grid = ["min(blocks, sms)"]
block = ["128 + 128 * groups"]
shared = "1024 + stages * stage_bytes + 16 * stages"
args = ["x_map", "h_map", "w_ih_map", "w_hh_map", "c", "b_ih", "b_hh", "h_next", "c_next", "batch", "blocks_m", "blocks"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = x_t;
using Tile = unsigned long long;
constexpr int GATES = 4, COLUMNS = GATES * units, CHUNK = COLUMNS < 128 ? COLUMNS : 128;
constexpr int LINES = 64 * groups, A_BYTES = 128 * LINES, STAGE_BYTES = A_BYTES + 128 * COLUMNS;
constexpr int OF_X = (input + 63) / 64, STEPS = OF_X + (hidden + 63) / 64;
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
__device__ __forceinline__ void load(unsigned to, const CUtensorMap* map, int column, int line, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(map), "r"(column), "r"(line), "r"(barrier) : "memory");
}

// d += 64 lines of a by the lines of b, 16 terms.
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
__device__ __forceinline__ void multiply(const __nv_bfloat16*, float (&d)[32], Tile a, Tile b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, add, 1, 1, 0, 0;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(const __half*, float (&d)[32], Tile a, Tile b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, add, 1, 1, 0, 0;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(add));
}

// A tile of lines of 128 bytes along the sum, whose pieces of 16 bytes change places within eight lines.
__device__ __forceinline__ Tile tile_at(unsigned tile) {
    return 1ull << 62 | 64ull << 32 | 1ull << 16 | (tile & 0x3ffff) >> 4;
}

__device__ __forceinline__ float sigmoid_of(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float tanh_of(float x) {  // 1 - 2 / (exp(2x) + 1) has too few digits near 0
    const float y = x * x, third = fmaf(fmaf(fmaf(y, 62.0f / 2835, -17.0f / 315), y, 2.0f / 15), y, -1.0f / 3);
    return fabsf(x) < 0.25f ? fmaf(x * y, third, x) : 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f);
}
struct alignas(4) Two { T at[2]; };

extern "C" __global__ void __launch_bounds__(128 + 128 * groups, 1)
cell(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap h_map,
     const __grid_constant__ CUtensorMap w_ih_map, const __grid_constant__ CUtensorMap w_hh_map,
     const T* __restrict__ c, const T* __restrict__ b_ih, const T* __restrict__ b_hh,
     T* __restrict__ h_next, T* __restrict__ c_next, int batch, int blocks_m, int blocks) {
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
        if (threadIdx.x % 128 == 0) {
            int count = 0;
            for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
                const int line0 = block % blocks_m * LINES, unit0 = block / blocks_m * units;
                for (int step = 0; step < STEPS; ++step, ++count) {
                    const int stage = count % stages, k = 64 * (step < OF_X ? step : step - OF_X);
                    const unsigned to = tiles + stage * STAGE_BYTES, here = full + 8 * stage;
                    wait(empty + 8 * stage, count / stages % 2 ^ 1);
                    expect(here, STAGE_BYTES);
                    load(to, step < OF_X ? &x_map : &h_map, k, line0, here);
                    const CUtensorMap* const weights = step < OF_X ? &w_ih_map : &w_hh_map;
                    for (int gate = 0; gate < GATES; ++gate)
                        load(to + A_BYTES + gate * units * 128, weights, k, gate * hidden + unit0, here);
                }
            }
        }
        return;
    }
    if constexpr (LARGE) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int count = 0;
    for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
        const int line0 = block % blocks_m * LINES + warp * 16 + lane / 4;
        const int unit0 = block / blocks_m * units + lane % 4 * 2;
        Two old[units / 8][2];  // read early
        float sum[4][units / 8][4];  // of the gates, by 8 units; they begin with the biases
#pragma unroll
        for (int j = 0; j < units / 8; ++j) {
            const int unit = min(unit0 + 8 * j, hidden - 2);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                old[j][half] =
                    *reinterpret_cast<const Two*>(c + (long long)min(line0 + 8 * half, batch - 1) * hidden + unit);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) {
                const Two one = *reinterpret_cast<const Two*>(b_ih + gate * hidden + unit);
                const Two other = *reinterpret_cast<const Two*>(b_hh + gate * hidden + unit);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sum[gate][j][e] = float(one.at[e % 2]) + float(other.at[e % 2]);
                }
            }
        }
        const auto multiply_step = [&](int stage) {
            const unsigned tile = tiles + stage * STAGE_BYTES;
            wait(full + 8 * stage, count / stages % 2);
            const Tile a = tile_at(tile + group * 8192), b = tile_at(tile + A_BYTES);
#pragma unroll
            for (int chunk = 0; chunk < COLUMNS / CHUNK; ++chunk) {
                float part[CHUNK / 2];  // tensor cores cut off the last bits at each addition: keep sums short
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    multiply((const T*)nullptr, part, a + 2 * k, b + chunk * CHUNK * 8 + 2 * k, k > 0);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                if (chunk == COLUMNS / CHUNK - 1 && threadIdx.x % 128 == 0) arrive(empty + 8 * stage);
#pragma unroll
                for (int i = 0; i < CHUNK / 2; ++i) {
                    const int piece = chunk * CHUNK / 8 + i / 4;
                    sum[piece / (units / 8)][piece % (units / 8)][i % 4] += part[i];
                }
            }
        };
#pragma unroll 1
        for (int step = 0; step < STEPS; ++step, ++count) multiply_step(count % stages);
#pragma unroll
        for (int j = 0; j < units / 8; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = line0 + 8 * half, unit = unit0 + 8 * j;
                if (line >= batch || unit >= hidden) continue;
                const long long here = (long long)line * hidden + unit;
                Two made, cells;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float gate[4];
#pragma unroll
                    for (int g = 0; g < 4; ++g) gate[g] = sum[g][j][half * 2 + e];
                    const float kept = sigmoid_of(gate[1]) * float(old[j][half].at[e]);
                    const float next = kept + sigmoid_of(gate[0]) * tanh_of(gate[2]);
                    const float shown = sigmoid_of(gate[3]) * tanh_of(next);
                    cells.at[e] = T(next), made.at[e] = T(shown);
                }
                *reinterpret_cast<Two*>(c_next + here) = cells;
                *reinterpret_cast<Two*>(h_next + here) = made;
            }
        }
    }
}
