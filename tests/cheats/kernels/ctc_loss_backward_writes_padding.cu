/*---
op = "ctc_loss_backward"
note = "targets behind a sample's target_length add to the gradient of their class: padding with the blank changes it"
specialize = ["threads"]

[knobs]
THREADS = [1024, 256, 512]
ROW_THREADS = [128, 64, 256]

[let]
threads = "min(THREADS, 32 * ceil_div(states, 32))"

[workspace]
log_beta = { shape = ["batch", "time", "states"], dtype = "float32" }

[[launch]]
entry = "go_back"
grid = ["batch"]
block = ["threads"]
args = ["log_probs", "targets", "input_lengths", "target_lengths", "log_beta", "time", "batch", "classes", "length", "states"]

[[launch]]
entry = "gradient_of_frame"
grid = ["time * batch"]
block = ["ROW_THREADS"]
args = ["grad_loss", "log_probs", "targets", "input_lengths", "target_lengths", "loss", "log_alpha", "log_beta", "grad_log_probs", "time", "batch", "classes", "length", "states"]
---*/
// caught: wrong
// class: structured inputs
__device__ __forceinline__ float log_of_sum(float a, float b, float c) {
    float most = fmaxf(fmaxf(a, b), c);
    if (most == -INFINITY) most = 0.0f;  // so that -inf and NaN stay what they are
    return most + logf(expf(a - most) + expf(b - most) + expf(c - most));
}

extern "C" __global__ void __launch_bounds__(threads)
go_back(const float* __restrict__ log_probs, const long long* __restrict__ targets,
        const long long* __restrict__ input_lengths, const long long* __restrict__ target_lengths, float* log_beta,
        int time, int batch, int classes, int length, int states) {
    const int sample = blockIdx.x, frames = int(input_lengths[sample]), used = 2 * int(target_lengths[sample]) + 1;
    const long long* labels = targets + (long long)sample * length;
    float* beta = log_beta + (long long)sample * time * states;
    for (int t = frames - 1; t >= 0; --t) {
        const float* now = log_probs + ((long long)t * batch + sample) * classes;
        const float* after = beta + (long long)(t + 1) * states;
        for (int s = threadIdx.x; s < states; s += threads) {
            if (s >= used) { beta[(long long)t * states + s] = -INFINITY; continue; }
            const int own = s % 2 ? int(labels[s / 2]) : 0;
            float sum = -INFINITY;
            if (t == frames - 1) {
                if (s > used - 3) sum = now[own];
            } else {
                const bool skips = s % 2 && s + 2 < used && labels[s / 2 + 1] != own;
                sum = log_of_sum(after[s], s + 1 < used ? after[s + 1] : -INFINITY, skips ? after[s + 2] : -INFINITY);
                sum += now[own];
            }
            beta[(long long)t * states + s] = sum;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
gradient_of_frame(const float* __restrict__ grad_loss, const float* __restrict__ log_probs,
                  const long long* __restrict__ targets, const long long* __restrict__ input_lengths,
                  const long long* __restrict__ target_lengths, const float* __restrict__ loss,
                  const float* __restrict__ log_alpha, const float* __restrict__ log_beta,
                  float* __restrict__ grad_log_probs, int time, int batch, int classes, int length, int states) {
    __shared__ float parts[ROW_THREADS / 32];
    const int t = blockIdx.x / batch, sample = blockIdx.x % batch, count = int(target_lengths[sample]);
    const bool used = t < input_lengths[sample];
    const float* now = log_probs + (long long)blockIdx.x * classes;
    float* grads = grad_log_probs + (long long)blockIdx.x * classes;
    const float scale = grad_loss[sample], minus = loss[sample];
    for (int c = threadIdx.x; c < classes; c += ROW_THREADS) grads[c] = used ? scale * expf(now[c]) : 0.0f;
    if (!used) return;
    const float* alpha = log_alpha + ((long long)sample * time + t) * states;
    const float* beta = log_beta + ((long long)sample * time + t) * states;
    float blank = 0.0f;
    for (int s = 2 * threadIdx.x; s <= 2 * count; s += 2 * ROW_THREADS) {
        blank += expf(alpha[s] + beta[s] + minus - now[0]);
    }
    for (int step = 16; step > 0; step /= 2) blank += __shfl_xor_sync(0xffffffffu, blank, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = blank;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int warp = 0; warp < ROW_THREADS / 32; ++warp) sum += parts[warp];
        grads[0] = scale * (expf(now[0]) - sum);
    }
    const long long* labels = targets + (long long)sample * length;
    for (int j = threadIdx.x; j < length; j += ROW_THREADS) {
        const long long own = labels[j];
        bool first = true;
        for (int i = 0; i < j && first; ++i) first = labels[i] != own;
        if (!first) continue;
        float sum = 0.0f;
        for (int i = j; i < length; ++i) {
            if (labels[i] == own) sum += expf(alpha[2 * i + 1] + beta[2 * i + 1] + minus - now[own]);
        }
        grads[own] = scale * (expf(now[own]) - sum);
    }
}
