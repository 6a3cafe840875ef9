/*---
op = "adaptive_avg_pool1d"
note = "a team of lanes, as many as the window deserves, holds a window in registers by 16-byte loads that begin at multiples of 16 bytes, whatever the window does; elements outside it count as zeros; a window of many kilobytes gets the block"
when = "l * itemsize(x) >= 64 * ol and l <= 16777216 and ol <= 16777216 and n * c * ol < 2147483648"
specialize = ["l", "ol", "team", "longest"]

[knobs]
SHARE = [4, 2, 8]
THREADS = [256, 128, 512]
BATCH = [8, 4]

[let]
longest = "l // ol + min(1, l % ol) * ((l + 2 * ol - 2) // ol - l // ol)"
packs = "ceil_div(longest * itemsize(x), 16)"
team = "1 + min(1, packs // (2 * SHARE)) + 2 * min(1, packs // (4 * SHARE)) + 4 * min(1, packs // (8 * SHARE)) + 8 * min(1, packs // (16 * SHARE)) + 16 * min(1, packs // (32 * SHARE)) + (THREADS - 32) * min(1, packs // (THREADS * SHARE))"

[[launch]]
entry = "mean_windows"
grid = ["ceil_div(n * c * ol, THREADS // team)"]
block = ["THREADS"]
args = ["x", "out", "n * c * ol", "n * c * l"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int L = l, OL = ol;
constexpr int VEC = 16 / sizeof(x_t);
// Windows of whole packs, one after the other, begin and end where packs do.
constexpr bool WHOLE = L % OL == 0 && longest % VEC == 0;
constexpr int SPREAD = WHOLE ? longest / VEC : (longest + VEC - 2) / VEC + 1;  // packs that a window may touch
constexpr int ROUNDS = (SPREAD + team - 1) / team;
constexpr int BATCHES = (ROUNDS + BATCH - 1) / BATCH, AT_ONCE = (ROUNDS + BATCHES - 1) / BATCHES;
struct alignas(16) Pack { x_t at[VEC]; };

extern "C" __global__ void __launch_bounds__(THREADS)
mean_windows(const x_t* __restrict__ x, out_t* __restrict__ out, unsigned all, long long total) {
    const unsigned at = blockIdx.x * (THREADS / team) + threadIdx.x / team, lane = threadIdx.x % team;
    const unsigned of = min(at, all - 1);  // all lanes take part in the sums
    long long begin = (long long)of * longest;
    int size = longest;
    if constexpr (L % OL != 0) {
        const unsigned row = of / OL, place = of % OL, left = (unsigned long long)place * L / OL;
        size = int(((unsigned long long)(place + 1) * L + OL - 1) / OL) - left;
        begin = (long long)row * L + left;
    }
    const int skip = WHOLE ? 0 : int(begin % VEC), until = skip + size;
    const x_t* const from = x + (begin - skip);  // a multiple of 16 bytes
    const int limit = int(min(total - (begin - skip), 1ll << 30));  // a window is shorter, and a sum with it fits
    float sum = 0.0f;
    for (int round = 0; round < ROUNDS; round += AT_ONCE) {
        Pack held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int first = ((round + i) * team + lane) * VEC;
            if (first < until && (WHOLE || first + VEC <= limit)) {
                held[i] = *reinterpret_cast<const Pack*>(from + first);
            } else {
#pragma unroll
                for (int e = 0; e < VEC; ++e) held[i].at[e] = x_t(0.0f);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int first = ((round + i) * team + lane) * VEC;
            float some = 0.0f;
            if (WHOLE || first >= skip && first + VEC <= until) {
#pragma unroll
                for (int e = 0; e < VEC; ++e) some += float(held[i].at[e]);
            } else if (first < until) {
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    some += first + e >= skip && first + e < until ? float(held[i].at[e]) : 0.0f;
                }
            }
            sum += some;
        }
    }
    if constexpr (!WHOLE) {  // what of the window is in the incomplete pack at the end of the tensor
        for (int i = max(limit / VEC * VEC, skip) + lane; i < until; i += team) sum += float(from[i]);
    }
#pragma unroll
    for (int step = min(team, 32) / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if constexpr (team > 32) {
        __shared__ float parts[THREADS / 32];
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < THREADS / 32; ++i) sum += parts[i];
    }
    if (lane == 0 && at < all) out[at] = out_t(sum / size);
}
