/*---
op = "group_norm_backward"
note = "for groups that begin anywhere and fit in shared memory: a block per group of an image brings grad_out and x in by 16-byte pieces with all that lies round the group, sums channel by channel, so that only the pieces at the borders of channels need masks, and writes by pieces, with the weights of at most two channels each; no waiting for other blocks; a second launch adds up the images"
when = "height * width * itemsize(x) >= 16 and channels // sets <= 64 and per_group * itemsize(x) <= 55296"
specialize = ["per", "area", "in_group", "sets", "pieces", "elements"]

[knobs]
THREADS = [512, 256, 1024]

[let]
area = "height * width"
per = "per_group"
in_group = "channels // sets"
elements = "batch * channels * area"
pieces = "ceil_div(per * itemsize(x), 16) + 1"

[workspace]
plain_sums = { shape = ["batch", "channels"], dtype = "float32" }
along_sums = { shape = ["batch", "channels"], dtype = "float32" }

[[launch]]
entry = "grad_of_sets"
grid = ["batch * sets"]
block = ["THREADS"]
shared = "pieces * 32"
args = ["grad_out", "x", "mean", "rstd", "weight", "grad_x", "plain_sums", "along_sums"]

[[launch]]
entry = "sum_images"
grid = ["channels"]
block = [32]
args = ["plain_sums", "along_sums", "grad_weight", "grad_bias", "batch"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = THREADS / 32;
extern __shared__ uint4 memory[];  // grad_out, then x

union Pack {
    uint4 raw;
    x_t at[VEC];
};

__device__ __forceinline__ void put_pair(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put_pair(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put_pair(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

// A piece of a tensor; nothing behind the tensor's end is read.
__device__ __forceinline__ void fetch(uint4* to, const x_t* all, long long first) {
    if (first + VEC <= elements) {
        const unsigned at = (unsigned)__cvta_generic_to_shared(to);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(all + first) : "memory");
    } else {
        for (int j = 0; j < VEC; ++j) reinterpret_cast<x_t*>(to)[j] = first + j < elements ? all[first + j] : x_t(0.0f);
    }
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
grad_of_sets(const x_t* __restrict__ grad_out, const x_t* __restrict__ x, const mean_t* __restrict__ mean,
             const rstd_t* __restrict__ rstd, const weight_t* __restrict__ weight, x_t* __restrict__ grad_x,
             float* __restrict__ plain_sums, float* __restrict__ along_sums) {
    __shared__ float2 of_warps[in_group][WARPS];
    __shared__ double2 joint;
    const int set = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_channel = set % sets * in_group;
    const long long start = set * (long long)per, begin = start / VEC * VEC;  // of the first piece
    const int ahead = int(start - begin), own = (ahead + per + VEC - 1) / VEC;
#pragma unroll 2
    for (int piece = threadIdx.x; piece < own; piece += THREADS) {
        fetch(memory + piece, grad_out, begin + piece * VEC), fetch(memory + pieces + piece, x, begin + piece * VEC);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    const float centre = float(mean[set]), scale = float(rstd[set]);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int channel = 0; channel < in_group; ++channel) {
        const int from = ahead + channel * area, to = from + area;  // among the values of the pieces
        float plain = 0.0f, along = 0.0f;
        for (int piece = from / VEC + threadIdx.x; piece * VEC < to; piece += THREADS) {
            Pack grad, some;
            grad.raw = memory[piece], some.raw = memory[pieces + piece];
            const auto add = [&](int j) {
                const float one = float(grad.at[j]);
                plain += one;
                along = fmaf(one, float(some.at[j]) - centre, along);
            };
            if (piece * VEC >= from && piece * VEC + VEC <= to) {
#pragma unroll
                for (int j = 0; j < VEC; ++j) add(j);
            } else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    if (piece * VEC + j >= from && piece * VEC + j < to) add(j);
                }
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            plain += __shfl_xor_sync(0xffffffffu, plain, step);
            along += __shfl_xor_sync(0xffffffffu, along, step);
        }
        if (lane == 0) of_warps[channel][warp] = make_float2(plain, along);
    }
    __syncthreads();
    if (warp == 0) {
        double a = 0.0, b = 0.0;
        for (int channel = lane; channel < in_group; channel += 32) {
            double one = 0.0, other = 0.0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) one += of_warps[channel][w].x, other += of_warps[channel][w].y;
            other *= scale;
            const long long at = (long long)(set / sets) * (sets * in_group) + first_channel + channel;
            plain_sums[at] = float(one), along_sums[at] = float(other);
            const float gain = float(weight[first_channel + channel]);
            a += one * gain, b += other * gain;
        }
        a = sum_of_warp(a), b = sum_of_warp(b);
        if (lane == 0) joint = make_double2(a, b);
    }
    __syncthreads();
    const float shared = float(joint.x / per), slope = float(joint.y / per);
    for (int piece = threadIdx.x; piece < own; piece += THREADS) {
        Pack grad, some;
        grad.raw = memory[piece], some.raw = memory[pieces + piece];
        const int offset = piece * VEC - ahead;  // within the group
        const int channel = max(offset, 0) / area, border = (channel + 1) * area - offset;
        const float gain = float(weight[first_channel + channel]);
        const float other = border < VEC && channel + 1 < in_group ? float(weight[first_channel + channel + 1]) : 0.0f;
        float result[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            const float off = float(some.at[j]) - centre;
            result[j] = scale * (float(grad.at[j]) * (j < border ? gain : other) - shared - off * scale * slope);
        }
#pragma unroll
        for (int j = 0; j < VEC; j += 2) put_pair(&some.at[j], result[j], result[j + 1]);
        if (offset >= 0 && offset + VEC <= per) __stcs(reinterpret_cast<uint4*>(grad_x + begin + piece * VEC), some.raw);
        else {
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                if (offset + j >= 0 && offset + j < per) grad_x[start + offset + j] = some.at[j];
            }
        }
    }
}

// A warp per channel: its sums of all images.
extern "C" __global__ void __launch_bounds__(32)
sum_images(const float* __restrict__ plain_sums, const float* __restrict__ along_sums,
           grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias, int batch) {
    double plain = 0.0, along = 0.0;
    for (int image = threadIdx.x; image < batch; image += 32) {
        const long long at = (long long)image * (sets * in_group) + blockIdx.x;
        plain += plain_sums[at], along += along_sums[at];
    }
    plain = sum_of_warp(plain), along = sum_of_warp(along);
    if (threadIdx.x == 0) {
        grad_weight[blockIdx.x] = grad_weight_t(float(along)), grad_bias[blockIdx.x] = grad_bias_t(float(plain));
    }
}
