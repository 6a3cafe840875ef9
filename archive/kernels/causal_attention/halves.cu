/*---
op = "causal_attention"
note = "flash attention in float32 on tensor cores (mma.sync): queries, keys and weights are split into two float16 halves, scaled by powers of two for each line, values for each column of a tile, and three of the four products of halves are summed, in short sums that are added in float32; each warp has 16 queries, tiles of keys and values come by cp.async; what is not finite is computed without halves; tiles of hidden keys are skipped, and the longest rows begin first"
when = "dim % 8 == 0 and dim >= 64 and dim <= 128"
dtypes = ["float32"]
specialize = ["dim", "span"]

[knobs]
KEYS = [64, 32]
WARPS = [4, 8]

[let]
wide = "16 * ceil_div(dim, 16)"
span = "min(KEYS, 4096 // wide // 32 * 32)"
tiles = "ceil_div(length, span)"
queries_lines = "batch * heads * length"
keys_lines = "batch * heads * length"

[workspace]
q_parts = { shape = ["queries_lines", "2 * wide"], dtype = "float16" }
k_parts = { shape = ["keys_lines", "2 * wide"], dtype = "float16" }
v_parts = { shape = ["keys_lines", "2 * wide"], dtype = "float16" }
q_units = { shape = ["queries_lines"], dtype = "float32" }
k_units = { shape = ["keys_lines"], dtype = "float32" }
v_units = { shape = ["batch * heads * tiles", "wide"], dtype = "float32" }

[[launch]]
entry = "split_lines"
grid = ["ceil_div(queries_lines, 8)"]
block = [256]
args = ["q", "q_parts", "q_units", "queries_lines"]

[[launch]]
entry = "split_lines"
grid = ["ceil_div(keys_lines, 8)"]
block = [256]
args = ["k", "k_parts", "k_units", "keys_lines"]

[[launch]]
entry = "split_values"
grid = ["batch * heads", "tiles"]
block = ["wide"]
args = ["v", "v_parts", "v_units", "length"]

[[launch]]
entry = "attend"
grid = ["batch * heads", "ceil_div(length, 16 * WARPS)"]
block = ["32 * WARPS"]
shared = "16 * (4 * ceil_div(dim, 16) + 1) * (16 * WARPS + 4 * span) + 8 * (span + wide)"
args = ["q", "k", "v", "q_parts", "q_units", "k_parts", "k_units", "v_parts", "v_units", "out", "lse", "length"]
---*/
#include <cuda_fp16.h>

constexpr int DEPTH = (dim + 15) / 16, WIDE = 16 * DEPTH, PIECES = 4 * DEPTH, PITCH = PIECES + 1;  // of 16 bytes: a line's upper halves, then the lower; odd, so that eight lines lie in different banks
constexpr int NEXT = span / 8, QUERIES = 16 * WARPS, THREADS = 32 * WARPS, TILE = 16 * span * PITCH, STAGE = 2 * TILE + 4 * (span + WIDE);  // in bytes
constexpr int GROUP = 4;  // tiles of 8 columns of values at a time
constexpr float FIRST = -1e30f, FINITE = 3.402823466e38f;  // FIRST is finite, so that the difference of two of them is no NaN
constexpr float UP = 16384.0f;  // what weights, 1 at most, are scaled by before they are split

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// What makes the greatest number lie in 2**14..2**15: a power of two, as two factors, for it may exceed a float's range.
struct Scale {
    float first, second, unit;
    __device__ __forceinline__ Scale(float most, bool finite) {
        const int up = 14 + 127 - max(__float_as_int(most) >> 23, 1);
        first = power_of_two(up >> 1), second = power_of_two(up - (up >> 1));
        unit = finite ? power_of_two(-(up >> 1)) * power_of_two((up >> 1) - up) : NAN;  // results with NaN as a unit are computed again
        if (!finite) first = 0.0f;
    }
};

__device__ __forceinline__ void write_halves(__half* to, float value, const Scale& scale) {
    value = scale.first == 0.0f ? 0.0f : value * scale.first * scale.second;
    to[0] = __float2half_rn(value);
    to[WIDE] = __float2half_rn(value - __half2float(to[0]));
}

// A line of queries or keys to a warp.
extern "C" __global__ void __launch_bounds__(256) split_lines(const float* __restrict__ from, __half* parts, float* units, long long lines) {
    const long long line = blockIdx.x * 8ll + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (line >= lines) return;
    float most = 0.0f;
    bool finite = true;
    for (int d = lane; d < dim; d += 32) {
        const float value = fabsf(from[line * dim + d]);
        most = fmaxf(most, value), finite = finite && value <= FINITE;
    }
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    const Scale scale(most, __all_sync(0xffffffffu, finite));
    for (int d = lane; d < WIDE; d += 32) write_halves(parts + line * 2 * WIDE + d, d < dim ? from[line * dim + d] : 0.0f, scale);
    if (lane == 0) units[line] = scale.unit;
}

// A column of a tile of values to a thread: the sum runs over keys.
extern "C" __global__ void __launch_bounds__(WIDE) split_values(const float* __restrict__ v, __half* parts, float* units, int keys) {
    const int d = threadIdx.x, first = blockIdx.y * span, count = min(span, keys - first);
    const long long line = (long long)blockIdx.x * keys + first;
    float most = 0.0f;
    bool finite = true;
    if (d < dim) {
#pragma unroll 8
        for (int i = 0; i < count; ++i) {
            const float value = fabsf(v[(line + i) * dim + d]);
            most = fmaxf(most, value), finite = finite && value <= FINITE;
        }
    }
    const Scale scale(most, finite);
#pragma unroll 8
    for (int i = 0; i < count; ++i) write_halves(parts + (line + i) * 2 * WIDE + d, d < dim ? v[(line + i) * dim + d] : 0.0f, scale);
    units[((long long)blockIdx.x * gridDim.y + blockIdx.y) * WIDE + d] = scale.unit;
}

__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void load4(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load4_transposed(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The four lanes that hold a row.
__device__ __forceinline__ float most_of(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float sum_of(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

__device__ __forceinline__ void copy16(unsigned to, const __half* from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

// Lines of halves into shared memory; zeros beyond the last.
template <int COUNT> __device__ __forceinline__ void fetch(unsigned to, const __half* parts, int first, int lines) {
    if (first + COUNT <= lines && COUNT * PIECES % THREADS == 0 && THREADS % PIECES == 0) {
        constexpr int EACH = THREADS / PIECES;
        const int line = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        const __half* const from = parts + (long long)(first + line) * 2 * WIDE + piece * 8;
#pragma unroll
        for (int i = 0; i < COUNT * PIECES / THREADS; ++i) copy16(to + 16 * ((line + i * EACH) * PITCH + piece), from + i * EACH * 2 * WIDE, true);
    } else {
#pragma unroll 1
        for (int index = threadIdx.x; index < COUNT * PIECES; index += THREADS) {
            const int line = index / PIECES, piece = index % PIECES;
            const bool inside = first + line < lines;
            copy16(to + 16 * (line * PITCH + piece), parts + (inside ? (long long)(first + line) * 2 * WIDE + piece * 8 : 0), inside);
        }
    }
}

// Without halves, for what is not finite.
__device__ __forceinline__ float plain_score(const float* q, const float* k) {
    float sum = 0.0f;
#pragma unroll 1
    for (int d = 0; d < dim; ++d) sum = fmaf(q[d], k[d], sum);
    return sum;
}
__device__ __noinline__ float plain_result(const float* q, const float* k, const float* v, int begin, int end, float scale, float lse) {
    float of_infinite = 0.0f, of_all = 0.0f;
    bool infinite = false;
    for (int j = begin; j < end; ++j) {
        const float value = v[(long long)j * dim];
        if (value != value) return value;
        if (fabsf(value) > FINITE) infinite = true, of_infinite += expf(plain_score(q, k + (long long)j * dim) * scale - lse) * value;
    }
    if (infinite) return of_infinite;
    for (int j = begin; j < end; ++j) of_all += expf(plain_score(q, k + (long long)j * dim) * scale - lse) * v[(long long)j * dim];
    return of_all;
}

extern "C" __global__ void __launch_bounds__(THREADS, 8 / WARPS)
attend(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const __half* __restrict__ q_parts,
       const float* __restrict__ q_units, const __half* __restrict__ k_parts, const float* __restrict__ k_units,
       const __half* __restrict__ v_parts, const float* __restrict__ v_units, float* __restrict__ out, float* __restrict__ lse, int length) {
    extern __shared__ uint4 memory[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // the longest rows first
    const long long head = blockIdx.x;
    const int begin = 0, end = (min(first + QUERIES, length) + span - 1) / span;
    const int lowest = first + warp * 16;  // this warp's first query
    const unsigned start = at(memory), ring = start + 16 * QUERIES * PITCH;
    const auto fetch_tile = [&](int tile) {
        const unsigned to = ring + tile % 2 * STAGE;
        fetch<span>(to, k_parts + head * length * 2 * WIDE, tile * span, length);
        fetch<span>(to + TILE, v_parts + head * length * 2 * WIDE, tile * span, length);
        for (int i = threadIdx.x; i < span; i += THREADS) {
            const bool inside = tile * span + i < length;
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 2 * TILE + 4 * i), "l"(k_units + (inside ? head * length + tile * span + i : 0)), "r"(inside ? 4 : 0) : "memory");
        }
        for (int i = threadIdx.x; i < WIDE; i += THREADS)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + 2 * TILE + 4 * (span + i)), "l"(v_units + (head * ((length + span - 1) / span) + tile) * WIDE + i) : "memory");
    };
    fetch<QUERIES>(start, q_parts + head * length * 2 * WIDE, first, length);
    fetch_tile(begin);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const float scale = 1.0f / sqrtf(float(dim)), scale2 = scale * 1.44269504f;  // exponentials are of base 2
    const int row0 = first + warp * 16 + lane / 4;
    float unit[2];  // of this lane's rows
#pragma unroll
    for (int half = 0; half < 2; ++half) unit[half] = q_units[head * length + min(row0 + 8 * half, length - 1)];
    const unsigned query_part = start + 16 * ((warp * 16 + lane % 16) * PITCH + lane / 16);
    const unsigned key_part = 16 * ((lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2), value_part = TILE + 16 * (lane % 16 * PITCH + lane / 16);
    float sum[2 * DEPTH][4] = {}, most[2] = {FIRST, FIRST}, total[2] = {};
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        if (tile + 1 < end) fetch_tile(tile + 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (tile * span >= lowest + 16) continue;  // hidden from all queries of this warp
        const unsigned here = ring + tile % 2 * STAGE;
        const float* const units = reinterpret_cast<const float*>(reinterpret_cast<const char*>(memory) + 16 * QUERIES * PITCH + tile % 2 * STAGE + 2 * TILE);
        float score[NEXT][4] = {};
        // Tensor cores cut off what does not fit into a sum, so theirs run over 32 terms each.
#pragma unroll
        for (int part = 0; part < DEPTH; part += 2) {
            float made[NEXT][4] = {};
#pragma unroll
            for (int d = part; d < min(part + 2, DEPTH); ++d) {
                unsigned upper[4], lower[4];
                load4(upper, query_part + 32 * d);
                load4(lower, query_part + 32 * (DEPTH + d));
                unsigned keep[NEXT / 2][4];
#pragma unroll
                for (int j = 0; j < NEXT / 2; ++j) {
                    load4(keep[j], here + key_part + 16 * (j * 16 * PITCH + 2 * d));
                    mma(made[2 * j], lower, keep[j][0], keep[j][1]);
                    mma(made[2 * j + 1], lower, keep[j][2], keep[j][3]);
                }
#pragma unroll
                for (int j = 0; j < NEXT / 2; ++j) {
                    unsigned low[4];
                    load4(low, here + key_part + 16 * (j * 16 * PITCH + 2 * (DEPTH + d)));
                    mma(made[2 * j], upper, low[0], low[1]);
                    mma(made[2 * j + 1], upper, low[2], low[3]);
                }
#pragma unroll
                for (int j = 0; j < NEXT / 2; ++j) {
                    mma(made[2 * j], upper, keep[j][0], keep[j][1]);
                    mma(made[2 * j + 1], upper, keep[j][2], keep[j][3]);
                }
            }
#pragma unroll
            for (int j = 0; j < NEXT; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) score[j][e] += made[j][e];
        }
        float known = unit[0] + unit[1];
#pragma unroll
        for (int j = 0; j < NEXT; ++j) {
            const float2 of_keys = *reinterpret_cast<const float2*>(units + j * 8 + lane % 4 * 2);
            known += of_keys.x + of_keys.y;
#pragma unroll
            for (int e = 0; e < 4; ++e) score[j][e] = score[j][e] * unit[e / 2] * (e % 2 ? of_keys.y : of_keys.x);
        }
        if (known != known) {
#pragma unroll
            for (int j = 0; j < NEXT; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = min(row0 + e / 2 * 8, length - 1), key = min(tile * span + j * 8 + lane % 4 * 2 + e % 2, length - 1);
                    if (score[j][e] != score[j][e]) score[j][e] = plain_score(q + (head * length + row) * dim, k + (head * length + key) * dim);
                }
        }
        if ((tile + 1) * span > lowest + 1) {
            const int ahead = tile * span + lane % 4 * 2 - (lowest + lane / 4);
#pragma unroll
            for (int j = 0; j < NEXT; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int back = e / 2 * 8 - j * 8 - e % 2;  // plus what is known at run time alone
                    if (back < ahead) score[j][e] = -INFINITY;
                }
        }
        float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int j = 0; j < NEXT; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) highest[e / 2] = fmaxf(highest[e / 2], score[j][e]);
        if (__any_sync(0xffffffffu, highest[0] > most[0] || highest[1] > most[1])) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float now = fmaxf(most[half], most_of(highest[half]));
                const float shrink = exp2_of((most[half] - now) * scale2);
                most[half] = now, total[half] *= shrink;
#pragma unroll
                for (int n = 0; n < 2 * DEPTH; ++n) sum[n][2 * half] *= shrink, sum[n][2 * half + 1] *= shrink;
            }
        }
        unsigned upper[NEXT / 2][4], lower[NEXT / 2][4];  // the weights in halves
#pragma unroll
        for (int j = 0; j < NEXT; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float low = exp2_of((score[j][2 * half] - most[half]) * scale2), high = exp2_of((score[j][2 * half + 1] - most[half]) * scale2);
                total[half] += low + high;
                union { __half2 two; unsigned word; } made;
                made.two = __floats2half2_rn(low * UP, high * UP);
                const float2 back = __half22float2(made.two);
                upper[j / 2][j % 2 * 2 + half] = made.word;
                made.two = __floats2half2_rn(low * UP - back.x, high * UP - back.y);
                lower[j / 2][j % 2 * 2 + half] = made.word;
            }
#pragma unroll
        for (int n = 0; n < 2 * DEPTH; n += GROUP) {
            constexpr int STEPS = NEXT / 2;
            float made[GROUP][4] = {};
            unsigned value[STEPS][GROUP / 2][4];
#pragma unroll
            for (int j = 0; j < STEPS; ++j)
#pragma unroll
                for (int pair = 0; pair < GROUP / 2; ++pair) {
                    if (n + 2 * pair >= 2 * DEPTH) continue;
                    load4_transposed(value[j][pair], here + value_part + 16 * (j * 16 * PITCH + n + 2 * pair));
                    mma(made[2 * pair], lower[j], value[j][pair][0], value[j][pair][1]);
                    mma(made[2 * pair + 1], lower[j], value[j][pair][2], value[j][pair][3]);
                }
#pragma unroll
            for (int j = 0; j < STEPS; ++j)
#pragma unroll
                for (int pair = 0; pair < GROUP / 2; ++pair) {
                    if (n + 2 * pair >= 2 * DEPTH) continue;
                    unsigned low[4];
                    load4_transposed(low, here + value_part + 16 * (j * 16 * PITCH + 2 * DEPTH + n + 2 * pair));
                    mma(made[2 * pair], upper[j], low[0], low[1]);
                    mma(made[2 * pair + 1], upper[j], low[2], low[3]);
                }
#pragma unroll
            for (int j = 0; j < STEPS; ++j)
#pragma unroll
                for (int pair = 0; pair < GROUP / 2; ++pair) {
                    if (n + 2 * pair >= 2 * DEPTH) continue;
                    mma(made[2 * pair], upper[j], value[j][pair][0], value[j][pair][1]);
                    mma(made[2 * pair + 1], upper[j], value[j][pair][2], value[j][pair][3]);
                }
#pragma unroll
            for (int i = 0; i < GROUP; ++i) {
                if (n + i >= 2 * DEPTH) continue;
                const float2 of_values = *reinterpret_cast<const float2*>(units + span + (n + i) * 8 + lane % 4 * 2);
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[n + i][e] = fmaf(made[i][e] * (1.0f / UP), e % 2 ? of_values.y : of_values.x, sum[n + i][e]);
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row0 + 8 * half;
        const float all = sum_of(total[half]), part = 1.0f / all, found = fmaf(most[half], scale, logf(all));
        if (row >= length) continue;
        const long long line = head * length + row, of_keys = head * length * dim;
        if (lane % 4 == 0) lse[line] = found;
#pragma unroll
        for (int n = 0; n < 2 * DEPTH; ++n) {
            const int d = n * 8 + lane % 4 * 2;
            if (d >= dim) continue;
            float low = sum[n][2 * half] * part, high = sum[n][2 * half + 1] * part;
            if (all == all && low != low) low = plain_result(q + line * dim, k + of_keys, v + of_keys + d, 0, row + 1, scale, found);
            if (all == all && high != high) high = plain_result(q + line * dim, k + of_keys, v + of_keys + d + 1, 0, row + 1, scale, found);
            *reinterpret_cast<float2*>(out + line * dim + d) = make_float2(low, high);
        }
    }
}
