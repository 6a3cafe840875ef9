/*---
op = "rms_norm_silu_backward"
note = "few instructions for each value, in rows of any width: the gate and its slope are made once, by one exponential and one reciprocal, and stay in registers until the sums of the row are known; a block takes rows that begin at one place of 16 bytes, so that a thread has the same columns of each; their whole pieces come by cp.async through slots that are each thread's own and are read again for the results; the few values before the first and behind the last piece are of one thread each; a second launch adds up the sums of the blocks in order"
when = "cols * itemsize(x) >= 512 and cols <= 8192"
specialize = ["cols", "threads", "groups", "pieces", "depth", "per_sm", "teams"]
require = ["depth * stage_bytes * per_sm <= 222 * 1024", "groups * cols * 4 <= depth * stage_bytes or groups == 1"]

[knobs]
RESIDENT = [640, 512, 768]
VALUES = [16, 8]
BLOCK = [256, 384]

[let]
full = "16 // itemsize(x)"
need = "cols // full"
many = "min(1, (need - 1) // 128)"
threads = "32 + many * (min(1024, 32 * ceil_div(need, 32 * VALUES // full)) - 32)"
groups = "many + (1 - many) * (BLOCK // 32)"
pieces = "ceil_div(need, threads)"
stage_bytes = "groups * threads * pieces * 48"
per_sm = "many * max(1, min(RESIDENT // threads, 216 * 1024 // (2 * stage_bytes))) + 1 - many"
depth = "max(2, min(8, 216 * 1024 // per_sm // stage_bytes))"
teams = "min(ceil_div(ceil_div(rows, full), groups), max(1, sms * per_sm // full)) * full"

[workspace]
weight_sums = { shape = ["teams", "cols"], dtype = "float32" }

[[launch]]
entry = "grad_of_rows"
grid = ["teams"]
block = ["threads * groups"]
shared = "depth * stage_bytes"
args = ["grad_out", "x", "z", "weight", "grad_x", "grad_z", "weight_sums", "rows", "eps"]

[[launch]]
entry = "sum_teams"
grid = ["ceil_div(cols, 32)"]
block = [32, 32]
args = ["weight_sums", "grad_weight"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = threads / 32, BLOCK_THREADS = threads * groups, VEC = 16 / sizeof(x_t), INPUTS = 3;
constexpr float OF_COLS = 1.0f / cols;
extern __shared__ uint4 memory[];  // each thread reads only the slots that it fills

struct alignas(16) Pack { x_t at[VEC]; };

__device__ __forceinline__ int place(int i) { return (i * threads + threadIdx.x % threads) * VEC; }

__device__ __forceinline__ void copy16(void* to, const void* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

// Numbers from whole words: taken apart one by one, every other value would cost two instructions.
__device__ __forceinline__ void widen(const float*, float* to, unsigned word) { to[0] = __uint_as_float(word); }
__device__ __forceinline__ void widen(const __half*, float* to, unsigned word) {
    to[0] = __half2float(__ushort_as_half(word & 0xffff)), to[1] = __half2float(__ushort_as_half(word >> 16));
}
__device__ __forceinline__ void widen(const __nv_bfloat16*, float* to, unsigned word) {
    to[0] = __uint_as_float(word << 16), to[1] = __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ void read(float (&to)[VEC], const uint4* from) {
    const uint4 raw = *from;
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    const x_t* const type = nullptr;
#pragma unroll
    for (int i = 0; i < 4; ++i) widen(type, to + i * VEC / 4, words[i]);
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
__device__ __forceinline__ void store(x_t* to, const float (&from)[VEC]) {
    Pack result;
#pragma unroll
    for (int e = 0; e < VEC; e += 2) put(&result.at[e], from[e], from[e + 1]);
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&result));
}

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 4) return expf(x);
    float result;  // without the steps that keep subnormal numbers
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
}

// silu(z), and its derivative.
__device__ __forceinline__ void gate_of(float z, float& gate, float& slope) {
    const float part = __fdividef(1.0f, 1.0f + exp_of(-z));
    gate = z * part;
    slope = part * fmaf(z, 1.0f - part, 1.0f);
}

// Two sums over the threads of a row, in each of them; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ float2 sum_of_row(float2 of, int turn) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        of.x += __shfl_xor_sync(0xffffffffu, of.x, step);
        of.y += __shfl_xor_sync(0xffffffffu, of.y, step);
    }
    if constexpr (WARPS > 1) {
        __shared__ float2 sums[2][WARPS];
        const int lane = threadIdx.x % 32;
        if (lane == 0) sums[turn][threadIdx.x / 32] = of;
        __syncthreads();
        of = lane < WARPS ? sums[turn][lane] : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            of.x += __shfl_xor_sync(0xffffffffu, of.x, step);
            of.y += __shfl_xor_sync(0xffffffffu, of.y, step);
        }
    }
    return of;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, per_sm)
grad_of_rows(const x_t* __restrict__ grad_out, const x_t* __restrict__ x, const x_t* __restrict__ z,
             const weight_t* __restrict__ weight, x_t* __restrict__ grad_x, x_t* __restrict__ grad_z,
             float* __restrict__ weight_sums, long long rows, float eps) {
    const int group = threadIdx.x / threads, own = threadIdx.x % threads, kind = blockIdx.x % VEC;
    // Rows that are VEC apart begin at the same place of 16 bytes.
    const auto row_of = [&](int step) {
        return (((long long)step * (teams / VEC) + blockIdx.x / VEC) * groups + group) * VEC + kind;
    };
    const int steps = int((rows + (long long)teams * groups - 1) / ((long long)teams * groups));
    const int head = (VEC - kind * (cols % VEC) % VEC) % VEC, whole = (cols - head) / VEC * VEC;
    const int tail = cols - head - whole;
    // A column in no piece.
    const int single = own < head ? own : own >= VEC && own < VEC + tail ? cols - tail + own - VEC : -1;
    const float gain_of_single = single >= 0 ? float(weight[single]) : 0.0f;
    float next_grad = 0.0f, next_value = 0.0f, next_z = 0.0f;
    const auto request_single = [&](int step) {
        const long long at = row_of(step) * cols + single;
        if (single < 0 || row_of(step) >= rows) return;
        next_grad = float(grad_out[at]), next_value = float(x[at]), next_z = float(z[at]);
    };
    const auto slots = [&](int step, int input) {
        return memory + (step % depth * INPUTS + input) * pieces * BLOCK_THREADS + threadIdx.x;
    };
    const auto request = [&](int step) {
        const long long row = row_of(step), first = row * cols + head;
        if (step < steps && row < rows) {
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
                if (place(i) >= whole) continue;
                copy16(slots(step, 0) + i * BLOCK_THREADS, grad_out + first + place(i));
                copy16(slots(step, 1) + i * BLOCK_THREADS, x + first + place(i));
                copy16(slots(step, 2) + i * BLOCK_THREADS, z + first + place(i));
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int step = 0; step < depth - 1; ++step) request(step);
    float gain[pieces][VEC];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int e = 0; e < VEC; ++e) gain[i][e] = place(i) < whole ? float(weight[head + place(i) + e]) : 0.0f;
    }
    request_single(0);
    float along_of_single = 0.0f, along_sum[pieces][VEC] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const long long row = row_of(step);
        asm volatile("cp.async.wait_group %0;" ::"n"(depth - 2) : "memory");
        request(step + depth - 1);
        const float grad_of_single = next_grad, value_of_single = next_value, z_of_single = next_z;
        request_single(step + 1);
        const uint4 *const grads = slots(step, 0), *const values = slots(step, 1), *const gates = slots(step, 2);
        float2 sum = make_float2(0.0f, 0.0f);  // of the squares, and of the weighted gradients times the values
        float gate[pieces][VEC], slope[pieces][VEC], gate_of_single = 0.0f, slope_of_single = 0.0f;
        if (row < rows) {
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
                if (place(i) >= whole) continue;
                float grad[VEC], value[VEC], before[VEC];
                read(grad, grads + i * BLOCK_THREADS);
                read(value, values + i * BLOCK_THREADS);
                read(before, gates + i * BLOCK_THREADS);
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    gate_of(before[e], gate[i][e], slope[i][e]);
                    const float one = value[e] * gate[i][e];
                    sum.x = fmaf(one, one, sum.x);
                    sum.y = fmaf(grad[e] * gain[i][e], one, sum.y);
                }
            }
            if (single >= 0) {
                gate_of(z_of_single, gate_of_single, slope_of_single);
                const float one = value_of_single * gate_of_single;
                sum.x = fmaf(one, one, sum.x);
                sum.y = fmaf(grad_of_single * gain_of_single, one, sum.y);
            }
        }
        sum = sum_of_row(sum, step % 2);
        if (row >= rows) continue;
        const float scale = rsqrtf(sum.x * OF_COLS + eps), along = sum.y * (scale * OF_COLS);
        if (single >= 0) {
            const float normed = value_of_single * gate_of_single * scale;
            along_of_single = fmaf(grad_of_single, normed, along_of_single);
            const float inner = scale * (grad_of_single * gain_of_single - normed * along);
            grad_x[row * cols + single] = x_t(inner * gate_of_single);
            grad_z[row * cols + single] = x_t(inner * value_of_single * slope_of_single);
        }
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            if (place(i) >= whole) continue;
            float grad[VEC], value[VEC], result[VEC], of_gate[VEC];
            read(grad, grads + i * BLOCK_THREADS);
            read(value, values + i * BLOCK_THREADS);
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                const float normed = value[e] * gate[i][e] * scale;
                along_sum[i][e] = fmaf(grad[e], normed, along_sum[i][e]);
                const float inner = scale * (grad[e] * gain[i][e] - normed * along);
                result[e] = inner * gate[i][e];
                of_gate[e] = inner * value[e] * slope[i][e];
            }
            store(grad_x + row * cols + head + place(i), result);
            store(grad_z + row * cols + head + place(i), of_gate);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    float* const to = weight_sums + (long long)blockIdx.x * cols;
    float* const all = groups > 1 ? reinterpret_cast<float*>(memory) + group * cols : to;
    if constexpr (groups > 1) __syncthreads();
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            if (place(i) < whole) all[head + place(i) + e] = along_sum[i][e];
        }
    }
    if (single >= 0) all[single] = along_of_single;
    if constexpr (groups > 1) {
        __syncthreads();
        for (int col = threadIdx.x; col < cols; col += BLOCK_THREADS) {
            float total = 0.0f;
#pragma unroll
            for (int of = 0; of < groups; ++of) total += reinterpret_cast<float*>(memory)[of * cols + col];
            to[col] = total;
        }
    }
}

// A warp's width of columns, 32 threads to each.
extern "C" __global__ void __launch_bounds__(1024)
sum_teams(const float* __restrict__ weight_sums, grad_weight_t* __restrict__ grad_weight) {
    __shared__ float met[32][33];
    const int col = blockIdx.x * 32 + threadIdx.x, own = blockIdx.x * 32 + threadIdx.y;
    float total = 0.0f;
#pragma unroll 8
    for (int team = threadIdx.y; team < teams && col < cols; team += 32) {
        total += weight_sums[(long long)team * cols + col];
    }
    met[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    total = met[threadIdx.x][threadIdx.y];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (threadIdx.x == 0 && own < cols) grad_weight[own] = grad_weight_t(total);
}
