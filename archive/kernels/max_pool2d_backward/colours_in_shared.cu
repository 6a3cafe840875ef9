/*---
op = "max_pool2d_backward"
note = "for small planes: a block brings the gradients and places of several planes into shared memory; windows that are so far apart that they do not overlap add their gradients to the sums there at once, one such class of windows after the other, without atomics and in one order; the sums are written by 16-byte pieces"
when = "h * w <= 2048 and oh * ow <= 4096 and kernel <= 8"
specialize = ["kernel", "stride", "padding", "h", "w", "oh", "ow", "planes", "apart"]

[knobs]
KILOBYTES = [32, 16, 64]
THREADS = [256, 128, 512]

[let]
unit = "16 // itemsize(grad_out)"
of_plane = "oh * ow * (itemsize(grad_out) + 2) + h * w * 4"
planes = "unit * max(1, KILOBYTES * 1024 // (unit * of_plane))"
apart = "ceil_div(kernel, stride)"

[[launch]]
entry = "grad_of_planes"
grid = ["ceil_div(n * c, planes)"]
block = ["THREADS"]
shared = "planes * of_plane"
args = ["grad_out", "indices", "grad_x", "n * c"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int AREA = h * w, OUT = oh * ow, VEC = 16 / sizeof(grad_out_t);
constexpr int DOWN = (oh + apart - 1) / apart, ACROSS = (ow + apart - 1) / apart;
extern __shared__ uint4 memory[];

union Pack {
    uint4 raw;
    grad_x_t at[VEC];
};

extern "C" __global__ void __launch_bounds__(THREADS)
grad_of_planes(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices, grad_x_t* __restrict__ grad_x,
               long long all) {
    float* const sums = reinterpret_cast<float*>(memory);
    grad_out_t* const held = reinterpret_cast<grad_out_t*>(sums + planes * AREA);
    unsigned short* const places = reinterpret_cast<unsigned short*>(held + planes * OUT);
    const long long first = (long long)blockIdx.x * planes;
    const int own = int(min((long long)planes, all - first)), windows = own * OUT, values = own * AREA;
    const grad_out_t* const from = grad_out + first * OUT;
    const long long* const at_places = indices + first * OUT;
    for (int piece = threadIdx.x; piece < windows / VEC; piece += THREADS) {
        const unsigned at = (unsigned)__cvta_generic_to_shared(held + piece * VEC);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from + piece * VEC) : "memory");
    }
    for (int at = windows / VEC * VEC + threadIdx.x; at < windows; at += THREADS) held[at] = from[at];
    asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll 4
    for (int at = 2 * threadIdx.x; at + 1 < windows; at += 2 * THREADS) {
        const longlong2 two = *reinterpret_cast<const longlong2*>(at_places + at);
        places[at] = (unsigned short)two.x, places[at + 1] = (unsigned short)two.y;
    }
    if (threadIdx.x == 0 && windows % 2 == 1) places[windows - 1] = (unsigned short)at_places[windows - 1];
    for (int at = threadIdx.x; at < values; at += THREADS) sums[at] = 0.0f;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
#pragma unroll 1
    for (int colour = 0; colour < apart * apart; ++colour) {
        const int top = colour / apart, left = colour % apart;
        for (int task = threadIdx.x; task < own * DOWN * ACROSS; task += THREADS) {
            const int plane = task / (DOWN * ACROSS), line = top + task % (DOWN * ACROSS) / ACROSS * apart;
            const int col = left + task % ACROSS * apart;
            if (line >= oh || col >= ow) continue;
            const int window = plane * OUT + line * ow + col;
            sums[plane * AREA + places[window]] += float(held[window]);
        }
        __syncthreads();
    }
    for (int piece = threadIdx.x; piece * VEC < values; piece += THREADS) {
        Pack result;
        grad_x_t* const to = grad_x + first * AREA + piece * VEC;
        if (piece * VEC + VEC <= values) {
#pragma unroll
            for (int j = 0; j < VEC; ++j) result.at[j] = grad_x_t(sums[piece * VEC + j]);
            *reinterpret_cast<uint4*>(to) = result.raw;
        } else {
            for (int j = 0; piece * VEC + j < values; ++j) to[j] = grad_x_t(sums[piece * VEC + j]);
        }
    }
}
