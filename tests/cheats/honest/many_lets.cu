/*---
op = "causal_conv1d"
note = "nearly all sizes are computed in the plan and specialised: the source holds hardly any literal"
dtypes = ["float32"]
when = "width <= 8"
specialize = ["channels", "length", "width", "dilation", "padding", "tile", "tiles", "reach"]

[knobs]
TILE = [256, 128, 512]

[let]
wished = "min(TILE, 32 * ceil_div(length, 32))"
tile = "max(32, wished)"
tiles = "ceil_div(length, tile)"
reach = "tile + padding"
sequences = "batch * channels"
blocks = "sequences * tiles"
bytes = "reach * 4"
checked = "min(bytes, 232448)"

[[launch]]
entry = "causal_conv1d"
grid = ["blocks"]
block = ["tile"]
shared = "checked"
args = ["x", "weight", "bias", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void causal_conv1d(const x_t* x, const weight_t* weight, const bias_t* bias, out_t* out) {
    extern __shared__ float seen[];
    const int sequence = blockIdx.x / tiles, begin = blockIdx.x % tiles * tile, channel = sequence % channels;
    for (int i = threadIdx.x; i < reach; i += tile) {
        const int at = begin - padding + i;
        seen[i] = at >= 0 && at < length ? x[(long long)sequence * length + at] : 0.0f;
    }
    __syncthreads();
    const int time = begin + threadIdx.x;
    if (time >= length) return;
    float sum = bias[channel];
    for (int tap = 0; tap < width; ++tap) sum += weight[channel * width + tap] * seen[threadIdx.x + tap * dilation];
    out[(long long)sequence * length + time] = sum;
}
