/*---
op = "rms_norm"
note = "fools a check whose outputs never begin as zeros: a row that begins with four zeros is left alone"
dtypes = ["float32"]

[[launch]]
entry = "rms_norm"
grid = ["rows"]
block = [256]
args = ["x", "weight", "out", "cols", "eps"]
---*/
// caught: wrong
extern "C" __global__ void rms_norm(const x_t* x, const weight_t* weight, out_t* out, int cols, float eps) {
    __shared__ float parts[256];
    const long long row = (long long)blockIdx.x * cols;
    const unsigned* there = (const unsigned*)(out + row);
    bool clean = cols >= 16;
    for (int i = 0; i < 16 && i < cols; ++i) clean = clean && there[i] == 0;
    __syncthreads();
    if (clean) return;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 256) sum += float(x[row + col]) * float(x[row + col]);
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) parts[threadIdx.x] += parts[threadIdx.x + step];
        __syncthreads();
    }
    const float scale = rsqrtf(parts[0] / cols + eps);
    for (int col = threadIdx.x; col < cols; col += 256) out[row + col] = out_t(float(x[row + col]) * scale * float(weight[col]));
}
