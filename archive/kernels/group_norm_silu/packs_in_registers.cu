/*---
op = "group_norm_silu"
note = "a warp takes a few kilobytes of a group, in pieces that lie in one channel each: its packs come out of slots in shared memory once, stay in registers until the statistics are known, and each slot is refilled at once by cp.async, so that the next set is on its way while the blocks sum, meet and write; sums of a warp round the mean of its own values, joined in double; each block publishes its two sums as two words of 64 bits, which are their own flags, so the blocks of a set meet in one write and one read of the L2, without fences or counters"
when = "height * width * itemsize(x) % 16 == 0 and height * width * itemsize(x) >= 128"
specialize = ["per", "area", "pieces", "of_channel", "warps", "parts", "per_sm", "teams", "count", "in_group", "sets"]
require = ["parts <= sms * per_sm"]

[knobs]
PACKS = [8, 4, 12]
WARPS = [8, 4, 16]

[let]
per = "per_group"
count = "batch * sets"
in_group = "channels // sets"
area = "height * width"
of_channel = "ceil_div(area * itemsize(x), 2048)"
pieces = "in_group * of_channel"
chunks = "ceil_div(pieces, PACKS // 4)"
warps = "ceil_div(chunks, ceil_div(chunks, WARPS))"
parts = "ceil_div(chunks, warps)"
bytes = "warps * PACKS * 512"
per_sm = "max(1, min(32, 65536 // (PACKS * 4 + 44) // (32 * warps), 226 * 1024 // (bytes + 2048)))"
slots = "max(1, sms * per_sm // parts)"
teams = "ceil_div(count, ceil_div(count, slots))"

[workspace]
words = { shape = ["count", "parts", 2], dtype = "int64", zero = true }

[[launch]]
entry = "group_norm_silu_in_registers"
grid = ["teams * parts"]
block = ["32 * warps"]
shared = "bytes"
args = ["x", "weight", "bias", "out", "mean", "rstd", "words", "eps"]
cooperative = true
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), BLOCK_THREADS = 32 * warps, PIECES = PACKS / 4;  // a piece: 4 packs of each lane
constexpr int ROUNDS_OF_32 = (parts + 31) / 32;
constexpr int POLLING = ROUNDS_OF_32 < warps ? ROUNDS_OF_32 : warps;  // warps that wait for other blocks
constexpr int OF_LANE = (ROUNDS_OF_32 + POLLING - 1) / POLLING;
constexpr double SHARE = 1.0 / per;
constexpr int OF_PIECE = 4 * 32 * VEC;
constexpr bool EVEN = area % OF_PIECE == 0;  // no lane is idle
extern __shared__ uint4 memory[];  // each thread reads only the slots that it fills

struct alignas(16) Pack { x_t at[VEC]; };

// The numbers of sixteen bytes, with one instruction each.
__device__ __forceinline__ float2 pair_of(unsigned two, const __nv_bfloat16*) {
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
}
__device__ __forceinline__ float2 pair_of(unsigned two, const __half*) {
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
}
template <class T> __device__ __forceinline__ void read(float (&to)[VEC], uint4 raw, const T* type) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if constexpr (sizeof(T) == 4) to[k] = __uint_as_float(words[k]);
        else {
            const float2 pair = pair_of(words[k], type);
            to[2 * k] = pair.x, to[2 * k + 1] = pair.y;
        }
    }
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ void fetch(void* to, const void* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ float finite(float value) { return fabsf(value) <= 3.402823466e+38f ? value : 0.0f; }

template <class T> __device__ __forceinline__ T sum_of_warp(T sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// A sum as a word that other blocks wait for. Zero says that it is not there yet, so a sum of +0 becomes -0.
__device__ __forceinline__ void publish(long long* word, double sum) {
    const long long bits = __double_as_longlong(sum);
    *reinterpret_cast<volatile long long*>(word) = bits == 0 ? (long long)(1ull << 63) : bits;
}

// Reads a word that another block writes. `__ldcv` would not do: the compiler moves it out of a loop.
__device__ __forceinline__ long long polled(const long long* word) {
    return *reinterpret_cast<const volatile long long*>(word);
}

// Waits for the parts that are this thread's and returns their sums.
__device__ __forceinline__ double2 sums_of_others(const long long* words) {
    const long long* const all = words + 2 * threadIdx.x;
    long long found[OF_LANE][2];
#pragma unroll
    for (int k = 0; k < OF_LANE; ++k) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const bool there = int(threadIdx.x) + 32 * POLLING * k < parts;
            found[k][h] = there ? polled(all + 64 * POLLING * k + h) : (long long)(1ull << 63);
        }
    }
    double2 sums = make_double2(0.0, 0.0);
#pragma unroll
    for (int k = 0; k < OF_LANE; ++k) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            while (found[k][h] == 0) found[k][h] = polled(all + 64 * POLLING * k + h);
        }
        sums.x += __longlong_as_double(found[k][0]), sums.y += __longlong_as_double(found[k][1]);
    }
    __syncwarp();
    return sums;
}

__device__ __forceinline__ float silu(float y) {
    if constexpr (sizeof(x_t) == 4) return y / (1.0f + expf(-y));
    float falling;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(falling) : "f"(y * -1.4426950408889634f));
    return __fdividef(y, 1.0f + falling);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, per_sm)
group_norm_silu_in_registers(const x_t* __restrict__ x, const weight_t* __restrict__ weight,
                             const bias_t* __restrict__ bias, out_t* __restrict__ out, mean_t* __restrict__ mean,
                             rstd_t* __restrict__ rstd, long long* words, float eps) {
    __shared__ double2 of_warp[warps], met[POLLING];
    const int part = blockIdx.x % parts, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = (part * warps + warp) * PIECES;  // the warp's first piece of a set
    const int held = min(max(pieces - first, 0), PIECES);
    int values = 0, offset[PIECES], left[PIECES];  // where the lane begins, and how much of the channel is left there
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const int channel = (first + p) / of_channel, begin = (first + p) % of_channel * OF_PIECE;
        if (p < held) values += min(OF_PIECE, area - begin);
        offset[p] = channel * area + begin + lane * VEC, left[p] = area - begin - lane * VEC;
    }
    const auto inside = [&](int p, int i) { return EVEN || i * 32 * VEC < left[p]; };
    const auto slot = [&](int p, int i) { return memory + (p * 4 + i) * BLOCK_THREADS + threadIdx.x; };
    const auto place = [&](int set, int p, int i) {
        return set * (long long)per + offset[p] + i * 32 * VEC;
    };
    const auto channel_of = [&](int set, int p) {
        return set % sets * in_group + min(first + p, pieces - 1) / of_channel;
    };
    const auto request = [&](int set, int p) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (inside(p, i)) fetch(slot(p, i), x + place(set, p, i));
        }
    };
    int set = blockIdx.x / parts;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        if (p < held) request(set, p);
    }
    weight_t gains[PIECES];
    bias_t shifts[PIECES];
    x_t begins;
    const auto prepare = [&](int of) {
        begins = x[of * (long long)per];
#pragma unroll
        for (int p = 0; p < PIECES; ++p) gains[p] = weight[channel_of(of, p)], shifts[p] = bias[channel_of(of, p)];
    };
    prepare(set);
    for (; set < count; set += teams) {
        const int next = set + teams;
        const float pivot = finite(float(begins));  // of a set far from zero, the sums keep their last digits
        uint4 raw[PIECES][4];
        asm volatile("cp.async.wait_all;" ::: "memory");
        constexpr float PART = 1.0f / (PIECES * OF_PIECE);  // applied before adding: great values do not overflow
        float near = 0.0f;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            if (p >= held) continue;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (!inside(p, i)) continue;
                raw[p][i] = *slot(p, i);
                float some[VEC], few = 0.0f;
                read(some, raw[p][i], x);
#pragma unroll
                for (int e = 0; e < VEC; ++e) few = fmaf(some[e], PART, few);
                near += few;
            }
            if (next < count) request(next, p);
        }
        near = sum_of_warp(near);
        near = held > 0 ? finite(near * (float(PIECES * OF_PIECE) / values)) : 0.0f;  // about the mean of the warp's values
        float off = 0.0f, spread = 0.0f;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            if (p >= held) continue;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (!inside(p, i)) continue;
                float some[VEC], few = 0.0f, others = 0.0f;
                read(some, raw[p][i], x);
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    const float one = some[e] - near;
                    few += one;
                    others = fmaf(one, one, others);
                }
                off += few, spread += others;
            }
        }
        off = sum_of_warp(off), spread = sum_of_warp(spread);
        if (lane == 0) {  // round the pivot, from those round the warp's own mean
            const double away = double(near) - double(pivot);
            of_warp[warp] = make_double2(values * away + off, spread + away * (2.0 * off + values * away));
        }
        float gain[PIECES], start[PIECES];
#pragma unroll
        for (int p = 0; p < PIECES; ++p) gain[p] = float(gains[p]), start[p] = float(shifts[p]);
        prepare(next < count ? next : set);  // comes while the blocks meet
        __syncthreads();
        if (warp < POLLING) {
            double2 some = warp == 0 && lane < warps ? of_warp[lane] : make_double2(0.0, 0.0);
            if (warp == 0) some.x = sum_of_warp(some.x), some.y = sum_of_warp(some.y);
            if constexpr (parts > 1) {
                long long* const all = words + (long long)set * parts * 2;
                if (threadIdx.x == 0) publish(all + 2 * part, some.x), publish(all + 2 * part + 1, some.y);
                some = sums_of_others(all);
                some.x = sum_of_warp(some.x), some.y = sum_of_warp(some.y);
            }
            if (lane == 0) met[warp] = some;
        }
        __syncthreads();
        double sum = 0.0, squares = 0.0;
#pragma unroll
        for (int w = 0; w < POLLING; ++w) sum += met[w].x, squares += met[w].y;
        const double moved = sum * SHARE, middle = double(pivot) + moved;
        const float rough = float(middle), lost = float(middle - rough);  // of a set far from zero, its last digits
        const float difference = float(squares * SHARE - moved * moved);
        const float variance = difference < 0.0f ? 0.0f : difference;  // NaN stays
        const float scale = 1.0f / sqrtf(variance + eps);
        if (part == 0 && threadIdx.x == 0) mean[set] = mean_t(rough), rstd[set] = rstd_t(scale);
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            if (p >= held) continue;
            const float its_gain = scale * gain[p], its_start = fmaf(-lost, its_gain, start[p]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (!inside(p, i)) continue;
                float some[VEC], result[VEC];
                read(some, raw[p][i], x);
#pragma unroll
                for (int e = 0; e < VEC; ++e) result[e] = silu(fmaf(some[e] - rough, its_gain, its_start));
                Pack made;
#pragma unroll
                for (int e = 0; e < VEC; e += 2) put(&made.at[e], result[e], result[e + 1]);
                __stcs(reinterpret_cast<uint4*>(out + place(set, p, i)), *reinterpret_cast<const uint4*>(&made));
            }
        }
    }
}
