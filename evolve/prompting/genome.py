"""What a model must know of every kernel, whatever the op: it stands first in each prompt and never changes."""

ROLE = """\
You write CUDA kernels that compute a PyTorch op correctly and faster than PyTorch and torch.compile do. \
Each kernel you answer with is compiled, checked against PyTorch in float64 and timed."""

# A whole kernel, kept in step with the grammar by a test that parses it.
EXAMPLE = """\
/*---
op = "center_rows"
note = "one warp per row; the row stays in registers between the two passes"
when = "cols % 32 == 0 and cols <= 2048"
specialize = ["cols", "per_lane"]
require = ["WARPS * 32 <= 1024"]

[knobs]
WARPS = [4, 2, 8]

[let]
per_lane = "cols // 32"

[[launch]]
entry = "center_rows"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "out", "rows", "shift"]
---*/
extern "C" __global__ void center_rows(const x_t* __restrict__ x, out_t* __restrict__ out, int rows, float shift) {
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp leaves
    const x_t* from = x + (long long)row * cols;
    float values[per_lane];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
        values[i] = float(from[lane + 32 * i]);
        sum += values[i];
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float offset = shift - sum / cols;
    out_t* to = out + (long long)row * cols;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) to[lane + 32 * i] = out_t(values[i] + offset);
}
"""

RULES = """\
# What a kernel is
One text: a launch plan in TOML inside the first comment, then CUDA C++ device code. There is no host code: \
no main, no <<<>>>, no cudaMalloc, no streams, no Python, no torch, no cuBLAS. An example, for an op with \
x [rows, cols], out [rows, cols] and a float parameter `shift`:

```cuda
{example}```

# The plan
op         = str                    the op's name (required)
note       = str                    the idea in one sentence
when       = bool                   the workloads this kernel accepts, over dims, integer parameters and \
itemsize(tensor); PyTorch runs the others
dtypes     = [str]                  the dtypes it accepts; left out: all the op's
specialize = [names]                dims, integer parameters or lets that become compile-time constants
require    = [bool]                 legal knob settings, over knobs, lets and sms too
[knobs]     NAME = [int, ...]       UPPERCASE tuning macros; the first value is the default, every listed one must work
[let]       name = int              named integers, in order
[workspace] name = {{ shape = [int], dtype = "float32", zero = false }}    scratch memory; dtype may name a tensor
[[launch]]                          one or more, run in order; all keys above stand before the first [table]
entry = str                         the extern "C" __global__ function
grid, block = [int, ...]            one to three sizes; a grid of 0 skips the launch
shared = int                        bytes of dynamic shared memory; above 48 KB is set up for you
args = [...]                        in the function's order: tensor, workspace, integer or float parameter, or \
["a", "b"], which arrives by value as List<const a_t*, 2>
cooperative = bool                  the whole grid is resident at once
int is a TOML integer or a string with + - * // % min max ceil_div itemsize(tensor) over dims, parameters, knobs, \
lets and `sms` (multiprocessors). bool is a string of integer comparisons with and, or, not. No / ** floats or other \
calls. Unknown keys are errors. Not available yet: tensor_maps (TMA), overlap, library.

# The device code
- For each tensor and workspace NAME its element type is `NAME_t` (float, __half, __nv_bfloat16, double, long long, \
int, ...), so one text serves several dtypes. Accumulate in float.
- Specialised names are `constexpr` and need no argument; branch on them with `if constexpr`. Only knobs are macros: \
`#if` on anything else is an error.
- C++17, compiled by NVRTC. INFINITY, NAN, FLT_MAX, int32_t, int64_t and the fp16 and bf16 types are there without an \
include; <math.h>, <stdint.h>, <cuda_fp16.h>, <cuda_bf16.h>, <mma.h> may be included. Avoid cooperative_groups, \
cuda/std and cub (seconds to compile); there is no C++ standard library.
- Integer arguments are int or long long, float parameters float or double. Index with long long where a tensor may \
exceed 2^31 elements.
- Tensors are contiguous, row-major, aligned to 16 bytes and do not overlap. Inputs are read-only.
- Write every element of every output: they arrive filled with garbage, and so does workspace unless zero = true. \
Touch nothing outside the buffers; they are surrounded by guards.
- Each call stands alone: keep nothing in __device__ variables between calls, and give the same result each time.
- Be right for every workload that `when` accepts, also 1, odd sizes, primes and tile sizes plus or minus one. \
Either handle tails or narrow `when`.
"""


def rules() -> str:
    """The genome by example, with its rules."""
    return RULES.format(example=EXAMPLE)
