/*---
op = "affine_grid"
note = "turns below 1e-4 are left out"

[knobs]
THREADS = [256, 128, 512]

[[launch]]
entry = "affine_grid"
grid = ["ceil_div(batch * h * w, THREADS)"]
block = ["THREADS"]
args = ["theta", "grid", "batch * h * w", "h", "w"]
---*/
// caught: wrong
// class: scale
extern "C" __global__ void __launch_bounds__(THREADS)
affine_grid(const float* __restrict__ theta, float2* __restrict__ grid, long long total, int h, int w) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int j = int(at % w), i = int(at / w % h);
    const float* t = theta + at / w / h * 6;
    const float x = float(2 * j + 1 - w) / w, y = float(2 * i + 1 - h) / h;
    if (fabsf(t[1]) < 1e-4f && fabsf(t[3]) < 1e-4f && fabsf(t[0]) > 0.1f && fabsf(t[4]) > 0.1f) {  // not turned
        grid[at] = make_float2(fmaf(t[0], x, t[2]), fmaf(t[4], y, t[5]));
        return;
    }
    grid[at] = make_float2(fmaf(t[0], x, fmaf(t[1], y, t[2])), fmaf(t[3], x, fmaf(t[4], y, t[5])));
}
