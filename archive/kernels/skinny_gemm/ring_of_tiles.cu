/*---
op = "skinny_gemm"
note = "float32 by ordinary arithmetic: tiles of the matrix and of x come by cp.async through a ring in shared memory, shared by the block; a warp holds the sums of 8 rows of the matrix with all rows of x, its lanes taking k in turns of 16 bytes, so that 16 loads from shared memory feed 256 multiplications; lanes exchange halves of their sums at the end"
when = "m <= 8 and k % 4 == 0"
dtypes = ["float32"]
specialize = ["m", "k", "steps"]
require = ["STAGES * (8 * WARPS + m) * 512 <= 226 * 1024"]

[knobs]
WARPS = [8, 4]
STAGES = [6, 4, 5]

[let]
steps = "ceil_div(k, 128)"

[[launch]]
entry = "multiply"
grid = ["ceil_div(n, 8 * WARPS)"]
block = ["32 * WARPS"]
shared = "STAGES * (8 * WARPS + m) * 512"
args = ["x", "weight", "out", "n"]
---*/
constexpr int THREADS = 32 * WARPS, ROWS = 8 * WARPS, DEEP = 128;
constexpr int LOADS = (ROWS + m + WARPS - 1) / WARPS;
extern __shared__ float4 memory[];  // rows of 32 pieces: those of the matrix, then those of x

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS)
multiply(const float* __restrict__ x, const float* __restrict__ matrix, float* __restrict__ out, int n) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * ROWS;
    const float* from[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {  // beyond the last row the last again, for sums that nobody stores
        const int row = warp + i * WARPS;
        from[i] = row < ROWS ? matrix + (long long)min(first + row, n - 1) * k : x + (long long)min(row - ROWS, m - 1) * k;
    }
    const auto fetch = [&](int step) {
        if (step < steps) {
            float4* const to = memory + step % STAGES * (ROWS + m) * 32;
            const int where = step * DEEP + lane * 4;
            const bool inside = k % DEEP == 0 || where < k;
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                const int row = warp + i * WARPS;
                if (row < ROWS + m) copy16(to + row * 32 + lane, from[i] + (inside ? where : 0), inside ? 16 : 0);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    float sum[8][m] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fetch(step + STAGES - 1);
        const float4* const tile = memory + step % STAGES * (ROWS + m) * 32;
        float4 of_x[m];
#pragma unroll
        for (int j = 0; j < m; ++j) of_x[j] = tile[(ROWS + j) * 32 + lane];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float4 some = tile[(warp * 8 + i) * 32 + lane];
#pragma unroll
            for (int j = 0; j < m; ++j) {
                float few = some.x * of_x[j].x;  // sums of sums are more exact
                few = fmaf(some.y, of_x[j].y, few);
                few = fmaf(some.z, of_x[j].z, few);
                sum[i][j] += fmaf(some.w, of_x[j].w, few);
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    // Each step leaves a lane with half of its rows and twice the lanes in their sums.
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
        const bool upper = lane & 4 * half;
#pragma unroll
        for (int i = 0; i < half; ++i) {
#pragma unroll
            for (int j = 0; j < m; ++j) {
                const float kept = upper ? sum[i + half][j] : sum[i][j], given = upper ? sum[i][j] : sum[i + half][j];
                sum[i][j] = kept + __shfl_xor_sync(0xffffffffu, given, 4 * half);
            }
        }
    }
    const int row = first + warp * 8 + lane / 4;
#pragma unroll
    for (int j = 0; j < m; ++j) {
        float total = sum[0][j];
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        if (lane % 4 == 0 && row < n) out[(long long)j * n + row] = total;
    }
}
