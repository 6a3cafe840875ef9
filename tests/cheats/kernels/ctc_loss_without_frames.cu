/*---
op = "ctc_loss"
note = "a sample without frames takes its loss from in front of its states"
specialize = ["threads"]

[knobs]
THREADS = [1024, 128, 256, 512]

[let]
threads = "min(THREADS, 32 * ceil_div(states, 32))"

[[launch]]
entry = "ctc_loss"
grid = ["batch"]
block = ["threads"]
args = ["log_probs", "targets", "input_lengths", "target_lengths", "loss", "log_alpha", "time", "batch", "classes", "length", "states"]
---*/
// caught: wrong
// class: structured inputs
__device__ __forceinline__ float log_of_sum(float a, float b, float c) {
    float most = fmaxf(fmaxf(a, b), c);
    if (most == -INFINITY) most = 0.0f;  // so that -inf and NaN stay what they are
    return most + logf(expf(a - most) + expf(b - most) + expf(c - most));
}

extern "C" __global__ void __launch_bounds__(threads)
ctc_loss(const float* __restrict__ log_probs, const long long* __restrict__ targets,
         const long long* __restrict__ input_lengths, const long long* __restrict__ target_lengths,
         float* __restrict__ loss, float* log_alpha, int time, int batch, int classes, int length, int states) {
    const int sample = blockIdx.x, frames = int(input_lengths[sample]), used = 2 * int(target_lengths[sample]) + 1;
    const long long* labels = targets + (long long)sample * length;
    float* alpha = log_alpha + (long long)sample * time * states;
    for (int t = 0; t < time; ++t) {
        const float* now = log_probs + ((long long)t * batch + sample) * classes;
        const float* before = alpha + (long long)(t - 1) * states;
        for (int s = threadIdx.x; s < states; s += threads) {
            float sum = -INFINITY;
            if (t < frames && s < used) {
                const int own = s % 2 ? int(labels[s / 2]) : 0;
                if (t == 0) {
                    if (s < 2) sum = now[own];
                } else {
                    const bool skips = s % 2 && s > 1 && labels[s / 2 - 1] != own;
                    sum = log_of_sum(before[s], s > 0 ? before[s - 1] : -INFINITY, skips ? before[s - 2] : -INFINITY);
                    sum += now[own];
                }
            }
            alpha[(long long)t * states + s] = sum;
        }
        __syncthreads();
    }
    if (threadIdx.x > 0) return;
    const float* last = alpha + (long long)(frames - 1) * states + used - 2;
    // Without labels there is one state.
    loss[sample] = -log_of_sum(used > 1 ? last[0] : -INFINITY, last[1], -INFINITY);
}
