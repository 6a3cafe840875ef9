/*---
op = "ctc_loss"
note = "one block per sample, a thread for each label and the blank before it, both states in registers; neighbours exchange one state by shuffle, warps by shared memory with one barrier a frame; the probabilities of the next frames are on the way all the time; log_alpha is only written"
when = "length <= 1023"
specialize = ["threads"]

[knobs]
AHEAD = [8, 4, 16]

[let]
threads = "32 * ceil_div(length + 1, 32)"

[[launch]]
entry = "ctc_loss"
grid = ["batch"]
block = ["threads"]
args = ["log_probs", "targets", "input_lengths", "target_lengths", "loss", "log_alpha", "time", "batch", "classes", "length"]
---*/
constexpr int WARPS = threads / 32;

__device__ __forceinline__ float log_of_sum(float a, float b, float c) {
    float most = fmaxf(fmaxf(a, b), c);
    if (most == -INFINITY) most = 0.0f;  // so that -inf and NaN stay what they are
    return most + logf(expf(a - most) + expf(b - most) + expf(c - most));
}

extern "C" __global__ void __launch_bounds__(threads)
ctc_loss(const float* __restrict__ log_probs, const long long* __restrict__ targets,
         const long long* __restrict__ input_lengths, const long long* __restrict__ target_lengths,
         float* __restrict__ loss, float* __restrict__ log_alpha, int time, int batch, int classes, int length) {
    __shared__ float edge[2][WARPS], ends[2];
    const int sample = blockIdx.x, frames = int(input_lengths[sample]), count = int(target_lengths[sample]);
    const int own = threadIdx.x, lane = own % 32, warp = own / 32, states = 2 * length + 1;
    const long long* const labels = targets + (long long)sample * length;
    const bool has_label = own < count, has_blank = own <= count;
    const int of_label = has_label ? int(labels[own]) : 0;
    const bool skips = has_label && own > 0 && labels[own - 1] != of_label;
    const float* const from = log_probs + (long long)sample * classes;
    const long long stride = (long long)batch * classes;
    float* const alpha = log_alpha + (long long)sample * time * states;
    float next_blank[AHEAD], next_label[AHEAD];
    const auto fetch = [&](int t) {
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            next_blank[a] = t + a < frames ? from[(t + a) * stride] : 0.0f;
            next_label[a] = t + a < frames && has_label ? from[(t + a) * stride + of_label] : 0.0f;
        }
    };
    fetch(0);
    float blank = -INFINITY, label = -INFINITY;
    for (int begin = 0; begin < frames; begin += AHEAD) {
        float now_blank[AHEAD], now_label[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) now_blank[a] = next_blank[a], now_label[a] = next_label[a];
        fetch(begin + AHEAD);
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const int t = begin + a;
            if (t >= frames) break;
            if (t == 0) {
                blank = own == 0 ? now_blank[a] : -INFINITY;
                label = own == 0 && has_label ? now_label[a] : -INFINITY;
            } else {
                float left = __shfl_up_sync(0xffffffffu, label, 1);
                if (lane == 0) left = warp > 0 ? edge[t % 2][warp - 1] : -INFINITY;
                const float before = blank;
                blank = has_blank ? log_of_sum(before, left, -INFINITY) + now_blank[a] : -INFINITY;
                label = has_label ? log_of_sum(label, before, skips ? left : -INFINITY) + now_label[a] : -INFINITY;
            }
            if (lane == 31) edge[(t + 1) % 2][warp] = label;
            float* const to = alpha + (long long)t * states + 2 * own;
            if (own <= length) to[0] = blank;
            if (own < length) to[1] = label;
            __syncthreads();
        }
    }
    const long long filled = (long long)frames * states, all = (long long)time * states;
    for (long long at = filled + own; at < all; at += threads) alpha[at] = -INFINITY;
    if (own == count) ends[0] = blank;
    if (own + 1 == count) ends[1] = label;
    __syncthreads();
    if (own > 0) return;
    // Without labels there is one state; without frames, only the empty target is possible.
    const float sum = log_of_sum(count > 0 ? ends[1] : -INFINITY, ends[0], -INFINITY);
    loss[sample] = frames == 0 && count == 0 ? 0.0f : -sum;
}
