/*---
op = "embedding_backward"
note = "each token enters itself into one of 32 slots of its row; then a warp makes several rows, or the same columns of them, whose counts and slots it reads all at once, and the tokens' gradients come one after the other by cp.async through a ring that is each lane's own, across the borders of rows; rows without tokens are cleared meanwhile, a row's only token is copied; the tokens of the few rows with more are listed, and blocks of their own mark them in bits and add them up in ascending order; no float atomics, one order"
when = "dim * itemsize(grad_out) % 16 == 0 and tokens <= 131072 and tokens <= 4 * vocab"
specialize = ["dim", "vec", "pieces", "parts", "warp_packs", "groups", "hub_blocks"]

[knobs]
WARPS = [4, 8]
VECTORS = [4, 2]
ROWS = [4, 2, 8]
DEPTH = [4, 3, 6]
HUB_BLOCKS = [132, 264]

[let]
vec = "16 // itemsize(grad_out)"
parts = "ceil_div(dim, 32 * vec * VECTORS)"
pieces = "ceil_div(dim, 32 * vec * parts)"
warp_packs = "max(4, DEPTH * pieces) * 32"
groups = "ceil_div(vocab, ROWS)"
hub_blocks = "HUB_BLOCKS"

[workspace]
counts = { shape = ["vocab + 2"], dtype = "int32", zero = true }
slots = { shape = ["vocab", 32], dtype = "int32" }
hubs = { shape = ["tokens // 32 + 1"], dtype = "int32" }
further = { shape = ["tokens"], dtype = "int64" }

[[launch]]
entry = "enter"
grid = ["ceil_div(tokens, 128)"]
block = [128]
args = ["indices", "counts", "slots", "hubs", "further", "tokens", "vocab"]

[[launch]]
entry = "add_up"
grid = ["hub_blocks + ceil_div(groups * parts, WARPS)"]
block = ["32 * WARPS"]
shared = "WARPS * warp_packs * 16"
args = ["grad_out", "counts", "slots", "hubs", "further", "grad_weight", "tokens", "vocab"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr unsigned ALL = 0xffffffffu;
constexpr int SLOTS = 32, WIDTH = 32 * vec * pieces, HUB_WIDTH = 32 * vec;
constexpr int HUB_PARTS = (dim + HUB_WIDTH - 1) / HUB_WIDTH;
constexpr int HUB_DEPTH = warp_packs / 32;
constexpr int WORDS = WARPS * ROWS * SLOTS > 1024 ? WARPS * ROWS * SLOTS : 1024;
constexpr int SHARE = WORDS / WARPS;  // of a warp: its list of tokens, or, of a hub, its words of bits
static_assert(SHARE % 32 == 0, "");
extern __shared__ uint4 memory[];

extern "C" __global__ void __launch_bounds__(128)
enter(const long long* __restrict__ indices, int* counts, int* slots, int* hubs, long long* further, int tokens,
      int vocab) {
    const int token = blockIdx.x * 128 + threadIdx.x;
    if (token >= tokens) return;
    const long long row = indices[token];
    const int place = atomicAdd(counts + row, 1);
    if (place < SLOTS) {
        slots[row * SLOTS + place] = token;
        return;
    }
    if (place == SLOTS) hubs[atomicAdd(counts + vocab, 1)] = int(row);
    further[atomicAdd(counts + vocab + 1, 1)] = row << 32 | token;
}

__device__ __forceinline__ void copy16(uint4* to, const grad_out_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void await() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ void widen(const float*, float* to, unsigned word) { to[0] = __uint_as_float(word); }
__device__ __forceinline__ void widen(const __half*, float* to, unsigned word) {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&word));
    to[0] = both.x, to[1] = both.y;
}
__device__ __forceinline__ void widen(const __nv_bfloat16*, float* to, unsigned word) {
    to[0] = __uint_as_float(word << 16), to[1] = __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ unsigned narrow(const float*, const float* from) { return __float_as_uint(from[0]); }
__device__ __forceinline__ unsigned narrow(const __half*, const float* from) {
    const __half2 both = __floats2half2_rn(from[0], from[1]);
    return *reinterpret_cast<const unsigned*>(&both);
}
__device__ __forceinline__ unsigned narrow(const __nv_bfloat16*, const float* from) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(from[0], from[1]);
    return *reinterpret_cast<const unsigned*>(&both);
}

__device__ __forceinline__ void unpack(float (&to)[vec], const uint4& from) {
    const grad_out_t* const kind = nullptr;
    widen(kind, to, from.x), widen(kind, to + vec / 4, from.y);
    widen(kind, to + vec / 2, from.z), widen(kind, to + vec / 4 * 3, from.w);
}
__device__ __forceinline__ uint4 pack(const float (&from)[vec]) {
    const grad_weight_t* const kind = nullptr;
    return make_uint4(narrow(kind, from), narrow(kind, from + vec / 4), narrow(kind, from + vec / 2),
                      narrow(kind, from + vec / 4 * 3));
}

__device__ __forceinline__ void store(grad_weight_t* to, int first, int i, const uint4& value) {
    const int col = first + 32 * vec * i;
    if (col < dim) __stcs(reinterpret_cast<uint4*>(to + col), value);
}

// A row with more tokens than slots. Its tokens, in whatever order they are listed, become bits; each warp has some
// words of these.
__device__ __forceinline__ void add_hub(const grad_out_t* __restrict__ grad_out, const int* __restrict__ of_slots,
                                        const long long* __restrict__ further, int listed, grad_weight_t* to, int row,
                                        int part, int tokens, unsigned* bits) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = part * HUB_WIDTH + lane * vec;
    uint4* const ring = memory + warp * warp_packs + lane;
    double total[vec] = {};
    for (int begin = 0; begin < tokens; begin += 32 * WORDS) {
        __syncthreads();  // the bits and the sums before these have been read
        for (int i = threadIdx.x; i < WORDS; i += 32 * WARPS) bits[i] = 0;
        __syncthreads();
        const auto mark = [&](int token) {
            const int bit = token - begin;
            if (bit < 0 || bit >= 32 * WORDS) return;
            atomicOr(bits + bit / 32 % WARPS * SHARE + bit / 32 / WARPS, 1u << bit % 32);
        };
        if (threadIdx.x < SLOTS) mark(of_slots[threadIdx.x]);
#pragma unroll 4
        for (int i = threadIdx.x; i < listed; i += 32 * WARPS) {
            const long long one = further[i];
            if (one >> 32 == row) mark(int(one));
        }
        __syncthreads();
        int asked = 0, added = 0;
        const auto add = [&] {
            const uint4 held = ring[added++ % HUB_DEPTH * 32];
            float values[vec];
            unpack(values, held);
#pragma unroll
            for (int e = 0; e < vec; ++e) total[e] += double(values[e]);
        };
        for (int i = 0; i < SHARE; i += 32) {
            unsigned own = bits[warp * SHARE + i + lane];
            for (unsigned some = __ballot_sync(ALL, own != 0); some != 0; some = __ballot_sync(ALL, own != 0)) {
                const int source = __ffs(some) - 1, bit = __ffs(__shfl_sync(ALL, own, source)) - 1;
                if (lane == source) own &= own - 1;
                if (asked - added == HUB_DEPTH - 1) {  // so that the place asked for was read one turn before
                    await<HUB_DEPTH - 2>();
                    add();
                }
                const int token = begin + ((i + source) * WARPS + warp) * 32 + bit;
                if (col < dim) copy16(ring + asked % HUB_DEPTH * 32, grad_out + (long long)token * dim + col);
                commit();
                ++asked;
            }
        }
        await<0>();
        while (added < asked) add();
    }
    __syncthreads();
    double* const met = reinterpret_cast<double*>(memory);
#pragma unroll
    for (int e = 0; e < vec; ++e) met[(warp * vec + e) * 32 + lane] = total[e];
    __syncthreads();
    if (warp == 0 && col < dim) {
        float sum[vec];
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            double all = 0.0;
            for (int w = 0; w < WARPS; ++w) all += met[(w * vec + e) * 32 + lane];
            sum[e] = float(all);
        }
        __stcs(reinterpret_cast<uint4*>(to + col), pack(sum));
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
add_up(const grad_out_t* __restrict__ grad_out, const int* __restrict__ counts, const int* __restrict__ slots,
       const int* __restrict__ hubs, const long long* __restrict__ further, grad_weight_t* __restrict__ grad_weight,
       int tokens, int vocab) {
    __shared__ unsigned words[WORDS];
    if (blockIdx.x < hub_blocks) {
        const int count = counts[vocab], listed = counts[vocab + 1];
        for (long long task = blockIdx.x; task < (long long)count * HUB_PARTS; task += hub_blocks) {
            const long long row = hubs[task / HUB_PARTS];
            add_hub(grad_out, slots + row * SLOTS, further, listed, grad_weight + row * dim, int(row),
                    int(task % HUB_PARTS), tokens, words);
        }
        return;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long task = (long long)(blockIdx.x - hub_blocks) * WARPS + warp;
    const int group = int(task / parts), first = int(task % parts) * WIDTH + lane * vec;
    if (group >= groups) return;  // the whole warp
    // Every so many-th row, because the low ones are often the frequent ones. A hub counts as -1.
    int count = lane < ROWS && (long long)lane * groups + group < vocab ? counts[lane * groups + group] : -1;
    if (count > SLOTS) count = -1;
    int ends = max(count, 0);
#pragma unroll
    for (int step = 1; step < ROWS; step *= 2) {
        const int other = __shfl_up_sync(ALL, ends, step);
        if (lane >= step) ends += other;
    }
    const int total = __shfl_sync(ALL, ends, ROWS - 1);
    int* const list = reinterpret_cast<int*>(words) + warp * SHARE;
    if (total > 0) {
        int token[ROWS], of_row[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            of_row[r] = __shfl_sync(ALL, count, r);
            token[r] = lane < of_row[r] ? slots[((long long)r * groups + group) * SLOTS + lane] : INT_MAX;
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {  // in ascending order
            int rank = 0;
            for (int i = 0; of_row[r] > 1 && i < of_row[r]; ++i) rank += __shfl_sync(ALL, token[r], i) < token[r];
            const int begin = __shfl_sync(ALL, ends, r) - max(of_row[r], 0);
            if (lane < of_row[r]) list[begin + rank] = token[r];
        }
    }
    __syncwarp();
    uint4* const ring = memory + warp * warp_packs + lane;
    int asked = 0, into = 0;
    const auto ask = [&] {
        if (asked < total) {
            const grad_out_t* const from = grad_out + (long long)list[asked] * dim;
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
                const int col = first + 32 * vec * i;
                if (col < dim) copy16(ring + (into * pieces + i) * 32, from + col);
            }
            ++asked;
        }
        commit();
        if (++into == DEPTH) into = 0;
    };
#pragma unroll 1
    for (int i = 0; i < DEPTH - 1; ++i) ask();
    for (int r = 0; r < ROWS; ++r) {
        if (__shfl_sync(ALL, count, r) != 0) continue;
        grad_weight_t* const to = grad_weight + ((long long)r * groups + group) * dim;
#pragma unroll
        for (int i = 0; i < pieces; ++i) store(to, first, i, make_uint4(0, 0, 0, 0));
    }
    int out_of = 0;
    for (int r = 0; r < ROWS; ++r) {
        const int of_row = __shfl_sync(ALL, count, r);
        if (of_row <= 0) continue;
        grad_weight_t* const to = grad_weight + ((long long)r * groups + group) * dim;
        uint4 held[pieces];
        const auto take = [&] {
            await<DEPTH - 2>();
#pragma unroll
            for (int i = 0; i < pieces; ++i) held[i] = ring[(out_of * pieces + i) * 32];
            if (++out_of == DEPTH) out_of = 0;
            ask();  // into the place that was read one turn before
        };
        take();
        if (of_row > 1) {
            float sum[pieces][vec];
#pragma unroll
            for (int i = 0; i < pieces; ++i) unpack(sum[i], held[i]);
            for (int t = 1; t < of_row; ++t) {
                take();
#pragma unroll
                for (int i = 0; i < pieces; ++i) {
                    float values[vec];
                    unpack(values, held[i]);
#pragma unroll
                    for (int e = 0; e < vec; ++e) sum[i][e] += values[e];
                }
            }
#pragma unroll
            for (int i = 0; i < pieces; ++i) held[i] = pack(sum[i]);
        }
#pragma unroll
        for (int i = 0; i < pieces; ++i) store(to, first, i, held[i]);
    }
    await<0>();
}
