/*---
op = "avg_pool2d_backward"
note = "windows that do not overlap: 16-byte stores, side by side, through the whole tensor whatever the size of its planes; each element looks up the one window that holds it by divisions by constants; a plane in one window costs two loads a store"
when = "kernel <= stride and h * w < 1073741824"
specialize = ["kernel", "stride", "padding", "h", "w", "oh", "ow"]

[knobs]
PACKS = [4, 1, 2]
THREADS = [256, 128, 512]

[let]
total = "n * c * h * w"

[[launch]]
entry = "spread"
grid = ["ceil_div(ceil_div(total * itemsize(grad_x), 16), THREADS * PACKS)"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "total"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(grad_x_t), PLANE = h * w, OUT = oh * ow, AREA = kernel * kernel;
constexpr bool WHOLE = OUT == 1 && padding == 0 && kernel >= h && kernel >= w && PLANE >= VEC;
// A store lies in one row, and its windows begin and end with it.
constexpr bool ALIGNED = padding == 0 && kernel == stride && w % VEC == 0 && VEC % stride == 0 && ow * stride == w;
constexpr int NEED = ALIGNED ? VEC / stride : 1;
struct alignas(16) Vec { grad_x_t at[VEC]; };
struct alignas(sizeof(grad_out_t) * (ow % NEED == 0 ? NEED : 1)) Near { grad_out_t at[ow % NEED == 0 ? NEED : 1]; };

__device__ __forceinline__ grad_x_t share(grad_out_t grad) {
    if constexpr ((AREA & (AREA - 1)) == 0) return grad_x_t(float(grad) * (1.0f / AREA));
    else return grad_x_t(float(grad) / AREA);
}

__device__ __forceinline__ grad_x_t gradient(const grad_out_t* __restrict__ plane, unsigned y, unsigned x) {
    const unsigned down = y + padding, along = x + padding, i = down / stride, j = along / stride;
    if (i >= oh || j >= ow || down % stride >= kernel || along % stride >= kernel) return grad_x_t(0.0f);
    return share(plane[i * ow + j]);
}

// `place` counts from the beginning of the plane whose gradients `plane` has, and may lie in a later one.
__device__ __forceinline__ void fill(Vec& result, const grad_out_t* __restrict__ plane, unsigned place) {
    plane += (long long)(place / PLANE) * OUT;
    place %= PLANE;
    if constexpr (WHOLE) {
        const int own = PLANE - place;  // elements of this plane
        const grad_x_t here = share(plane[0]);
        grad_x_t next = here;
        if (own < VEC) next = share(plane[1]);
#pragma unroll
        for (int e = 0; e < VEC; ++e) result.at[e] = e < own ? here : next;
    } else if constexpr (ALIGNED) {
        const unsigned y = place / w, x = place % w, i = y / stride;
        const grad_out_t* from = plane + i * ow + x / stride;
        grad_x_t shares[NEED];
#pragma unroll
        for (int v = 0; v < NEED; v += sizeof(Near) / sizeof(grad_out_t)) {
            Near near = {};  // rows below the last window have none
            if (i < oh) near = *reinterpret_cast<const Near*>(from + v);
#pragma unroll
            for (int e = 0; e < sizeof(Near) / sizeof(grad_out_t); ++e) shares[v + e] = share(near.at[e]);
        }
#pragma unroll
        for (int e = 0; e < VEC; ++e) result.at[e] = shares[e / stride];
    } else {
        unsigned y = place / w, x = place % w;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            result.at[e] = gradient(plane, y, x);
            if (++x == w) {
                x = 0;
                if (++y == h) y = 0, plane += OUT;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
spread(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, long long total) {
    const long long vectors = total / VEC, first = (long long)blockIdx.x * (THREADS * PACKS);
    const long long plane = first * VEC / PLANE;
    const unsigned begin = unsigned(first * VEC - plane * PLANE);
    const grad_out_t* const from = grad_out + plane * OUT;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const unsigned at = p * THREADS + threadIdx.x;
        if (first + at >= vectors) continue;
        Vec result;
        fill(result, from, begin + at * VEC);
        reinterpret_cast<Vec*>(grad_x)[first + at] = result;
    }
    const long long at = vectors * VEC + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && at < total) {
        const unsigned place = unsigned(at % PLANE);
        grad_x[at] = gradient(grad_out + at / PLANE * OUT, place / w, place % w);
    }
}
