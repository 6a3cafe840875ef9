/*---
op = "affine_grid"
note = "a block stays in one image, so that theta is read once a thread; two positions to a 16-byte store that stays out of the caches' way; no division but by constants"
specialize = ["h", "w", "vec", "chunks"]

[knobs]
THREADS = [128, 256, 512]
UNROLL = [4, 2, 8]

[let]
vec = "2 - min(1, h * w % 2)"
chunks = "ceil_div(h * w // vec, THREADS * UNROLL)"

[[launch]]
entry = "affine_grid"
grid = ["batch * chunks"]
block = ["THREADS"]
args = ["theta", "grid"]
---*/
struct alignas(8 * vec) Positions { float2 at[vec]; };

extern "C" __global__ void __launch_bounds__(THREADS) affine_grid(const float* __restrict__ theta, float2* __restrict__ grid) {
    constexpr int area = h * w;
    const int image = blockIdx.x / chunks, first = blockIdx.x % chunks * THREADS * UNROLL + threadIdx.x;
    float t[6];
#pragma unroll
    for (int i = 0; i < 6; ++i) t[i] = theta[image * 6ll + i];
    Positions* const to = reinterpret_cast<Positions*>(grid + image * (long long)area);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int at = first + u * THREADS;
        if (at >= area / vec) break;
        Positions made;
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            const int i = (at * vec + e) / w, j = (at * vec + e) % w;
            const float x = float(2 * j + 1 - w) * (1.0f / w), y = float(2 * i + 1 - h) * (1.0f / h);
            made.at[e] = make_float2(fmaf(t[0], x, fmaf(t[1], y, t[2])), fmaf(t[3], x, fmaf(t[4], y, t[5])));
        }
        if constexpr (vec == 2) __stcs(reinterpret_cast<float4*>(to + at), *reinterpret_cast<const float4*>(&made));
        else __stcs(reinterpret_cast<float2*>(to + at), made.at[0]);
    }
}
