/*---
op = "rms_norm_silu_backward"
note = "persistent blocks take several rows at once: cp.async brings the rows of the next steps into a ring in shared memory while one step is worked on, so that over 100 kB a multiprocessor are on the way and registers hold only the sums for the gradients of the weight; rows that are no multiple of 16 bytes come in whole aligned pieces, too; one block a multiprocessor keeps the second launch, which adds up the blocks' sums in order, small; the gate by a fast quotient; results are stored in accesses as wide as the loads"
when = "cols * itemsize(x) <= 32768"
specialize = ["cols", "aligned", "vec", "threads", "groups", "pieces", "row_bytes", "at_once", "depth", "per_sm", "teams"]
require = ["threads * groups <= 1024", "depth * stage_bytes * per_sm <= 222 * 1024", "pieces * vec <= 48"]

[knobs]
PIECES = [4, 2, 6]
LONG = [2, 1, 4]
BLOCK = [512, 256, 384]
ROWS = [2, 1, 4]
PER_SM = [1, 2]

[let]
full = "16 // itemsize(x)"
aligned = "1 - min(1, cols % full)"
vec = "1 + aligned * (full - 1)"
need = "ceil_div(cols, vec)"
of_one = "PIECES * aligned + 16 * (1 - aligned)"
of_many = "LONG * (1 + min(1, need // 1536)) * aligned + 16 * (1 - aligned)"
many = "min(1, (need - 1) // (32 * of_one))"
threads = "32 + many * 32 * (ceil_div(need, 32 * of_many) - 1)"
groups = "max(1, BLOCK // threads)"
pieces = "ceil_div(need, threads)"
row_bytes = "aligned * threads * pieces * 16 + (1 - aligned) * 16 * ceil_div(cols * itemsize(x) + 15, 16)"
per_sm = "PER_SM"
at_once = "max(1, min(ROWS, 72 * 1024 // per_sm // (groups * 3 * row_bytes)))"
stage_bytes = "groups * at_once * 3 * row_bytes"
depth = "max(2, min(8, 220 * 1024 // per_sm // stage_bytes))"
teams = "min(ceil_div(rows, groups * at_once), sms * per_sm)"

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

constexpr int WARPS = threads / 32, BLOCK_THREADS = threads * groups, SIZE = sizeof(x_t), FULL = 16 / SIZE;
constexpr int STEP_ROWS = groups * at_once;
extern __shared__ uint4 memory[];

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

__device__ __forceinline__ int place(int i) { return (i * threads + threadIdx.x % threads) * vec; }

__device__ __forceinline__ void copy16(void* to, const void* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

// The ring's memory for one of the three inputs of a row: each thread's own pieces, or the row with what lies round it.
__device__ __forceinline__ char* slot(int step, int r, int input) {
    const int at = ((step % depth * at_once + r) * 3 + input) * groups + threadIdx.x / threads;
    return reinterpret_cast<char*>(memory) + (long long)at * row_bytes;
}

__device__ __forceinline__ void fetch(char* to, const x_t* all, long long row, long long rows) {
    const int own = threadIdx.x % threads;
    if constexpr (aligned) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            if (place(i) < cols) copy16(to + (i * threads + own) * 16, all + row * cols + place(i));
        }
    } else {
        const long long first = row * cols / FULL * FULL, end = row * cols + cols, last = rows * cols;
        for (int i = own; first + i * FULL < end; i += threads) {
            const int values = int(min((long long)FULL, last - first - i * FULL));
            if (values == FULL) copy16(to + i * 16, all + first + i * FULL);
            else {  // one by one: a tool that watches memory takes any cp.async for a read of all its bytes
                for (int j = 0; j < values; ++j) reinterpret_cast<x_t*>(to + i * 16)[j] = all[first + i * FULL + j];
            }
        }
    }
}

__device__ __forceinline__ Pack<x_t> read(const char* from, long long row, int i) {
    if constexpr (aligned) return *reinterpret_cast<const Pack<x_t>*>(from + (i * threads + threadIdx.x % threads) * 16);
    else return *reinterpret_cast<const Pack<x_t>*>(from + (int(row * cols % FULL) + place(i)) * SIZE);
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

template <class T> __device__ __forceinline__ void store(T* to, const float (&from)[vec]) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e + 1 < vec; e += 2) put(&result.at[e], from[e], from[e + 1]);
    if constexpr (vec == 1) result.at[0] = T(from[0]);
    write(to, result);
}

// The sums over the threads of each row, in each of them; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ void sum_of_rows(float2 (&of)[at_once], int turn) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
#pragma unroll
        for (int r = 0; r < at_once; ++r) {
            of[r].x += __shfl_xor_sync(0xffffffffu, of[r].x, step);
            of[r].y += __shfl_xor_sync(0xffffffffu, of[r].y, step);
        }
    }
    if constexpr (WARPS > 1) {
        __shared__ float2 sums[2][groups][at_once][WARPS];
        const int lane = threadIdx.x % 32, group = threadIdx.x / threads;
#pragma unroll
        for (int r = 0; r < at_once; ++r) {
            if (lane == 0) sums[turn][group][r][threadIdx.x % threads / 32] = of[r];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < at_once; ++r) of[r] = lane < WARPS ? sums[turn][group][r][lane] : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int step = WARPS > 16 ? 16 : WARPS > 8 ? 8 : WARPS > 4 ? 4 : WARPS > 2 ? 2 : 1; step > 0; step /= 2) {
#pragma unroll
            for (int r = 0; r < at_once; ++r) {
                of[r].x += __shfl_xor_sync(0xffffffffu, of[r].x, step);
                of[r].y += __shfl_xor_sync(0xffffffffu, of[r].y, step);
            }
        }
        if constexpr (WARPS <= 16) {
#pragma unroll
            for (int r = 0; r < at_once; ++r) {
                of[r].x = __shfl_sync(0xffffffffu, of[r].x, 0);
                of[r].y = __shfl_sync(0xffffffffu, of[r].y, 0);
            }
        }
    }
}

// The sums of the groups of a block, one after the other.
__device__ __forceinline__ void store_sums(float* to, const float (&sum)[pieces][vec]) {
    float* const all = reinterpret_cast<float*>(memory);
    for (int group = 0; group < groups; ++group) {
        __syncthreads();
        if (int(threadIdx.x) / threads != group) continue;
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                if (place(i) < cols) all[place(i) + e] = (group > 0 ? all[place(i) + e] : 0.0f) + sum[i][e];
            }
        }
    }
    __syncthreads();
    for (int col = threadIdx.x; col < cols; col += BLOCK_THREADS) to[col] = all[col];
    __syncthreads();
}

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 4) return expf(x);
    float result;  // without the steps that keep subnormal numbers
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
}

__device__ __forceinline__ float sigmoid(float z) {
    return __fdividef(1.0f, 1.0f + exp_of(-z));
}

__device__ __forceinline__ float product(x_t x, x_t z) { return float(x) * (float(z) * sigmoid(float(z))); }

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, per_sm)
grad_of_rows(const x_t* __restrict__ grad_out, const x_t* __restrict__ x, const x_t* __restrict__ z,
             const weight_t* __restrict__ weight, x_t* __restrict__ grad_x, x_t* __restrict__ grad_z,
             float* __restrict__ weight_sums, long long rows, float eps) {
    const int group = threadIdx.x / threads;
    const auto row_of = [&](int step, int r) {
        return ((long long)step * teams + blockIdx.x) * STEP_ROWS + r * groups + group;
    };
    const int steps = int((rows + (long long)teams * STEP_ROWS - 1) / ((long long)teams * STEP_ROWS));
    const auto request = [&](int step) {
#pragma unroll
        for (int r = 0; r < at_once; ++r) {
            const long long row = row_of(step, r);
            if (step >= steps || row >= rows) continue;
            fetch(slot(step, r, 0), grad_out, row, rows);
            fetch(slot(step, r, 1), x, row, rows);
            fetch(slot(step, r, 2), z, row, rows);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int step = 0; step < depth - 1; ++step) request(step);
    Pack<weight_t> gain[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        if (place(i) < cols) gain[i] = *reinterpret_cast<const Pack<weight_t>*>(weight + place(i));
        else gain[i] = Pack<weight_t>{};
    }
    float along_sum[pieces][vec] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(depth - 2) : "memory");
        if constexpr (!aligned) __syncthreads();  // others have read parts of the row
        request(step + depth - 1);
        float2 sum[at_once];  // of the squares, and of the weighted gradients times the values
#pragma unroll
        for (int r = 0; r < at_once; ++r) {
            sum[r] = make_float2(0.0f, 0.0f);
            const long long row = row_of(step, r);
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
                if (row >= rows || place(i) >= cols) continue;
                const Pack<x_t> grad = read(slot(step, r, 0), row, i), value = read(slot(step, r, 1), row, i), gate = read(slot(step, r, 2), row, i);
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    const float one = product(value.at[e], gate.at[e]);
                    sum[r].x = fmaf(one, one, sum[r].x);
                    sum[r].y = fmaf(float(grad.at[e]) * float(gain[i].at[e]), one, sum[r].y);
                }
            }
        }
        sum_of_rows(sum, step % 2);
#pragma unroll
        for (int r = 0; r < at_once; ++r) {
            const long long row = row_of(step, r);
            const float scale = rsqrtf(sum[r].x / cols + eps), along = sum[r].y * (scale / cols);
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
                if (row >= rows || place(i) >= cols) continue;
                const Pack<x_t> grad = read(slot(step, r, 0), row, i), value = read(slot(step, r, 1), row, i), gate = read(slot(step, r, 2), row, i);
                float result[vec], of_gate[vec];
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    const float x_of = float(value.at[e]), z_of = float(gate.at[e]), part = sigmoid(z_of);
                    const float normed = x_of * (z_of * part) * scale;
                    along_sum[i][e] = fmaf(float(grad.at[e]), normed, along_sum[i][e]);
                    const float inner = scale * (float(grad.at[e]) * float(gain[i].at[e]) - normed * along);
                    result[e] = inner * (z_of * part);
                    of_gate[e] = inner * x_of * part * (1.0f + z_of * (1.0f - part));
                }
                store(grad_x + row * cols + place(i), result);
                store(grad_z + row * cols + place(i), of_gate);
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    store_sums(weight_sums + (long long)blockIdx.x * cols, along_sum);
}

// A warp's width of columns, 32 threads to each.
extern "C" __global__ void __launch_bounds__(1024)
sum_teams(const float* __restrict__ weight_sums, grad_weight_t* __restrict__ grad_weight) {
    const int col = blockIdx.x * 32 + threadIdx.x;
    float along = 0.0f;
#pragma unroll 8
    for (int team = threadIdx.y; team < teams && col < cols; team += 32) {
        along += weight_sums[(long long)team * cols + col];
    }
    __shared__ float alongs[32][33];
    alongs[threadIdx.y][threadIdx.x] = along;
    __syncthreads();
    along = alongs[threadIdx.x][threadIdx.y];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        along += __shfl_xor_sync(0xffffffffu, along, step);
    }
    const int own = blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x > 0 || own >= cols) return;
    grad_weight[own] = grad_weight_t(along);
}
