/*---
op = "affine_grid_backward"
note = "several blocks per image where images are few, whose sums a second launch adds up in order; 16-byte loads, several of them in flight; the sums are of whole numbers times gradients and divided once at the end"
specialize = ["h", "w", "vec", "parts", "share", "threads"]

[knobs]
THREADS = [256, 128, 512]
UNROLL = [4, 2, 8]

[let]
vec = "2 - min(1, h * w % 2)"
items = "h * w // vec"
threads = "min(THREADS, 32 * ceil_div(items, 32 * UNROLL))"
parts = "max(1, min(ceil_div(items, threads * UNROLL), sms * 16 // batch))"
share = "ceil_div(items, parts)"
several = "min(1, parts - 1)"

[workspace]
sums = { shape = ["batch * several", "parts", 6], dtype = "float32" }

[[launch]]
entry = "sum_parts"
grid = ["batch * parts"]
block = ["threads"]
args = ["grad_grid", "grad_theta", "sums"]

[[launch]]
entry = "add_up"
grid = ["several * ceil_div(batch * 6, 128)"]
block = [128]
args = ["sums", "grad_theta", "batch * 6"]
---*/
struct alignas(8 * vec) Positions { float2 at[vec]; };

__device__ __forceinline__ float scaled(float sum, int k) { return k % 3 == 0 ? sum / w : k % 3 == 1 ? sum / h : sum; }

extern "C" __global__ void __launch_bounds__(threads)
sum_parts(const float2* __restrict__ grad_grid, float* __restrict__ grad_theta, float* __restrict__ sums) {
    constexpr int area = h * w, WARPS = threads / 32;
    __shared__ float met[6][WARPS];
    const int image = blockIdx.x / parts, part = blockIdx.x % parts, end = min((part + 1) * share, area / vec);
    const Positions* const from = reinterpret_cast<const Positions*>(grad_grid + image * (long long)area);
    float sum[6] = {};
    for (int begin = part * share + threadIdx.x; begin < end; begin += threads * UNROLL) {
        Positions held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (begin + u * threads < end) held[u] = from[begin + u * threads];
            else held[u] = Positions{};
        }
        float few[6] = {};
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (begin + u * threads >= end) continue;
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const int at = (begin + u * threads) * vec + e, i = at / w, j = at % w;
                const float x = 2 * j + 1 - w, y = 2 * i + 1 - h;
                const float2 grad = held[u].at[e];
                few[0] = fmaf(grad.x, x, few[0]), few[1] = fmaf(grad.x, y, few[1]), few[2] += grad.x;
                few[3] = fmaf(grad.y, x, few[3]), few[4] = fmaf(grad.y, y, few[4]), few[5] += grad.y;
            }
        }
#pragma unroll
        for (int k = 0; k < 6; ++k) sum[k] += few[k];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
#pragma unroll
        for (int k = 0; k < 6; ++k) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], step);
    }
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int k = 0; k < 6; ++k) met[k][threadIdx.x / 32] = sum[k];
    }
    __syncthreads();
    if (threadIdx.x >= 6) return;
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) total += met[threadIdx.x][warp];
    if constexpr (parts == 1) grad_theta[image * 6 + threadIdx.x] = scaled(total, threadIdx.x);
    else sums[(long long)blockIdx.x * 6 + threadIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(128)
add_up(const float* __restrict__ sums, float* __restrict__ grad_theta, int count) {
    const int own = blockIdx.x * 128 + threadIdx.x;
    if (own >= count) return;
    float total = 0.0f;
#pragma unroll 8
    for (int part = 0; part < parts; ++part) total += sums[((long long)(own / 6) * parts + part) * 6 + own % 6];
    grad_theta[own] = scaled(total, own % 6);
}
