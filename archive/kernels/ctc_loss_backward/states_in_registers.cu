/*---
op = "ctc_loss_backward"
note = "one block per sample goes back through the frames with a label and the blank before it to a thread, states in registers, exchanged by shuffle and at the edges of warps through shared memory, and the next frames' probabilities on the way; it links equal labels once; then a block per frame writes all classes and adds up each label's states along the links, in order; no atomics"
when = "length <= 1023"
specialize = ["threads"]

[knobs]
AHEAD = [4, 8, 16]
ROW_THREADS = [128, 64, 256]

[let]
threads = "32 * ceil_div(length + 1, 32)"

[workspace]
log_beta = { shape = ["batch", "time", "states"], dtype = "float32" }
links = { shape = ["batch", "length"], dtype = "int32" }

[[launch]]
entry = "go_back"
grid = ["batch"]
block = ["threads"]
args = ["log_probs", "targets", "input_lengths", "target_lengths", "log_beta", "links", "time", "batch", "classes", "length"]

[[launch]]
entry = "gradient_of_frame"
grid = ["time * batch"]
block = ["ROW_THREADS"]
args = ["grad_loss", "log_probs", "targets", "input_lengths", "target_lengths", "loss", "log_alpha", "log_beta", "links", "grad_log_probs", "time", "batch", "classes", "length"]
---*/
constexpr int WARPS = threads / 32, FIRST = 1 << 30;

__device__ __forceinline__ float log_of_sum(float a, float b, float c) {
    float most = fmaxf(fmaxf(a, b), c);
    if (most == -INFINITY) most = 0.0f;  // so that -inf and NaN stay what they are
    return most + logf(expf(a - most) + expf(b - most) + expf(c - most));
}

extern "C" __global__ void __launch_bounds__(threads)
go_back(const float* __restrict__ log_probs, const long long* __restrict__ targets,
        const long long* __restrict__ input_lengths, const long long* __restrict__ target_lengths,
        float* __restrict__ log_beta, int* __restrict__ links, int time, int batch, int classes, int length) {
    __shared__ float2 edge[2][WARPS];
    __shared__ int known[threads];
    const int sample = blockIdx.x, frames = int(input_lengths[sample]), count = int(target_lengths[sample]);
    const int own = threadIdx.x, lane = own % 32, warp = own / 32, states = 2 * length + 1;
    const bool has_label = own < count, has_blank = own <= count;
    const int of_label = has_label ? int(targets[(long long)sample * length + own]) : 0;
    known[own] = of_label;
    __syncthreads();
    const bool skips = own + 1 < count && known[own + 1] != of_label;
    const float* const from = log_probs + (long long)sample * classes;
    const long long stride = (long long)batch * classes;
    float* const beta = log_beta + (long long)sample * time * states;
    float next_blank[AHEAD], next_label[AHEAD];
    const auto fetch = [&](int t) {
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            next_blank[a] = t - a >= 0 ? from[(t - a) * stride] : 0.0f;
            next_label[a] = t - a >= 0 && has_label ? from[(t - a) * stride + of_label] : 0.0f;
        }
    };
    fetch(frames - 1);
    if (has_label) {  // the next equal label, and whether there is none before
        int next = own + 1, before = 0;
        while (next < count && known[next] != of_label) ++next;
        while (known[before] != of_label) ++before;
        links[(long long)sample * length + own] = next | (before == own ? FIRST : 0);
    }
    float blank = -INFINITY, label = -INFINITY;
    for (int begin = frames - 1; begin >= 0; begin -= AHEAD) {
        float now_blank[AHEAD], now_label[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) now_blank[a] = next_blank[a], now_label[a] = next_label[a];
        fetch(begin - AHEAD);
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const int t = begin - a;
            if (t < 0) break;
            if (t == frames - 1) {
                blank = own == count ? now_blank[a] : -INFINITY;
                label = own + 1 == count ? now_label[a] : -INFINITY;
            } else {
                float right_blank = __shfl_down_sync(0xffffffffu, blank, 1), right_label = __shfl_down_sync(0xffffffffu, label, 1);
                if (lane == 31) {
                    const float2 right = warp + 1 < WARPS ? edge[t % 2][warp + 1] : make_float2(-INFINITY, -INFINITY);
                    right_blank = right.x, right_label = right.y;
                }
                const float after = label;
                label = has_label ? log_of_sum(after, right_blank, skips ? right_label : -INFINITY) + now_label[a] : -INFINITY;
                blank = has_blank ? log_of_sum(blank, after, -INFINITY) + now_blank[a] : -INFINITY;
            }
            if (lane == 0) edge[(t + 1) % 2][warp] = make_float2(blank, label);  // for the frame before, t - 1
            float* const to = beta + (long long)t * states + 2 * own;
            if (has_blank) to[0] = blank;
            if (has_label) to[1] = label;
            __syncthreads();
        }
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
gradient_of_frame(const float* __restrict__ grad_loss, const float* __restrict__ log_probs,
                  const long long* __restrict__ targets, const long long* __restrict__ input_lengths,
                  const long long* __restrict__ target_lengths, const float* __restrict__ loss,
                  const float* __restrict__ log_alpha, const float* __restrict__ log_beta, const int* __restrict__ links,
                  float* __restrict__ grad_log_probs, int time, int batch, int classes, int length) {
    __shared__ float parts[ROW_THREADS / 32];
    const int t = blockIdx.x / batch, sample = blockIdx.x % batch, count = int(target_lengths[sample]);
    const bool used = t < input_lengths[sample];
    const float* const now = log_probs + (long long)blockIdx.x * classes;
    float* const grads = grad_log_probs + (long long)blockIdx.x * classes;
    const float scale = grad_loss[sample], minus = loss[sample];
    const int states = 2 * length + 1;
    const float* const alpha = log_alpha + ((long long)sample * time + t) * states;
    const float* const beta = log_beta + ((long long)sample * time + t) * states;
    float blank = 0.0f;
    for (int s = 2 * threadIdx.x; used && s <= 2 * count; s += 2 * ROW_THREADS) {
        blank += expf(alpha[s] + beta[s] + minus - now[0]);
    }
#pragma unroll 8
    for (int c = threadIdx.x; c < classes; c += ROW_THREADS) grads[c] = used ? scale * expf(now[c]) : 0.0f;
    if (!used) return;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) blank += __shfl_xor_sync(0xffffffffu, blank, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = blank;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < ROW_THREADS / 32; ++warp) sum += parts[warp];
        grads[0] = scale * (expf(now[0]) - sum);
    }
    const int* const linked = links + (long long)sample * length;
    for (int j = threadIdx.x; j < count; j += ROW_THREADS) {
        if (!(linked[j] & FIRST)) continue;
        const long long own = targets[(long long)sample * length + j];
        float sum = 0.0f;
        for (int i = j; i < count; i = linked[i] & (FIRST - 1)) sum += expf(alpha[2 * i + 1] + beta[2 * i + 1] + minus - now[own]);
        grads[own] = scale * (expf(now[own]) - sum);
    }
}
