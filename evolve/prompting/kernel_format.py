"""The kernel format: rules for the kernels of every op.

They are the beginning of each prompt and are always the same.
"""

ROLE = """\
You write CUDA kernels that compute a PyTorch op correctly and faster than PyTorch and torch.compile do. \
Each kernel you answer with is compiled, checked against PyTorch in float64 and timed."""

# A complete kernel. A test parses it to ensure that it follows the grammar.
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
itemsize(tensor) alone; PyTorch runs the others
dtypes     = [str]                  the dtypes it accepts; left out: all the op's
specialize = [names]                dims, integer parameters, lets or `sms` that become compile-time constants
require    = [bool]                 legal knob settings, over knobs, lets and `sms` too
[knobs]     NAME = [int, ...]       UPPERCASE tuning macros; every listed value must work. The kernel is checked and \
timed at the first ones; a tuner may then try some other settings, not all
[let]       name = int              named integers, in order; each may use those before it
[workspace] name = {{ shape = [int], dtype = "float32", zero = false }}    scratch memory; dtype may name a tensor
[[launch]]                          one or more, run in order; each sees the results of the previous ones
entry = str                         the extern "C" __global__ function
grid, block = [int, ...]            one to three sizes, x first; a grid of 0 skips the launch
shared = int                        bytes of dynamic shared memory; above 48 KB is set up for you
args = [...]                        in the function's order: tensor, workspace, float parameter, integer, or \
["a", "b"], which arrives by value as List<const a_t*, 2> and is read as list[0], list[1]
cooperative = bool                  the whole grid is resident at once, so that its blocks may wait for each other
- int is a TOML integer or a string with + - * // % min max ceil_div itemsize(tensor) over dims, parameters, knobs, \
lets and `sms` (multiprocessors). bool is a string of integer comparisons with and, or, not. No / ** floats, \
conditionals or other calls.
- `op` to `require` come before the first [table]. Unknown keys are errors. A new name is a C identifier, not a \
keyword of C++, and not a name of the op. A float parameter cannot be specialised: pass it in `args`.
- Limits: 1024 threads per block, its z 64; y and z of a grid 65535; the device's shared memory; at most 64 values per \
knob, 400 characters per expression, 20,000 per plan. A workload at which the default knobs break a limit is not run.

Two launches that share scratch memory, as part of a plan:

```toml
[let]
parts = "ceil_div(cols, 4096)"

[workspace]
partial = {{ shape = ["rows", "parts"], dtype = "float32" }}

[[launch]]
entry = "sum_parts"
grid = ["parts", "rows"]
block = [256]
shared = "256 * 4"
args = ["x", "partial", "cols", "parts"]

[[launch]]
entry = "finish"
grid = ["rows"]
block = [32]
args = ["partial", "out", "parts"]
```

# The device code
- For each tensor and workspace NAME its element type is `NAME_t`: float32 is float, float16 __half, bfloat16 \
__nv_bfloat16, float64 double, int64 long long, int32 int, int16 short, int8 signed char, uint8 unsigned char, bool \
bool; float8_e4m3fn __nv_fp8_e4m3 and float8_e5m2 __nv_fp8_e5m2, which need <cuda_fp8.h>. One text thus serves several \
dtypes. `float(value)` and `NAME_t(number)` convert. Accumulate in float.
- Specialised names are `constexpr int` (long long from 2^31 on) and need no argument; branch on them with \
`if constexpr`. Only knobs are macros: `#if` on anything else is an error.
- An entry is extern "C", so it cannot be a template; its helpers can. A tensor arrives as `const NAME_t*` or, for \
outputs and workspace, `NAME_t*`; an integer as int or long long, a float parameter as float or double. The \
number and the sizes of the arguments are checked.
- C++17, compiled by NVRTC. Available without an include: INFINITY, NAN, FLT_MAX, INT_MAX and the like, M_PI, int8_t \
to uint64_t, the fp16 and bf16 types with their intrinsics, `List`. <math.h>, <stdint.h>, <float.h>, <cuda_fp16.h>, \
<cuda_bf16.h>, <mma.h> may be included. Avoid cooperative_groups, cuda/std and cub (seconds to compile). No std::, no \
headers of your own.
- Dynamic shared memory is `extern __shared__ T name[];`, static is at most 48 KB.
- Blocks of a cooperative launch synchronise at a counter in workspace with zero = true: after __syncthreads(), \
thread 0 calls __threadfence() and atomicAdd, waits until all blocks have been counted, calls __threadfence() again, \
and then __syncthreads(). In other launches, a block may wait only for lower tickets, which blocks draw by atomicAdd. \
Values that a block writes for other blocks need __threadfence() before the count or flag that announces them, and no \
__ldg in the same launch. A loop that waits reads through a volatile pointer: the compiler may move __ldcv out of it.
- Tensors are contiguous and row-major, and like workspace begin at a multiple of 16 bytes, so a 16-byte \
access (float4, uint4, or a struct alignas(16)) inside a row needs `cols * itemsize(x) % 16 == 0`; a struct may still \
be stored in parts, unlike a uint4 by __stcs. Index with long long where a tensor may exceed 2^31 elements.

# What is checked
- Every output element must be written in every call: outputs arrive filled with garbage, as does workspace unless \
zero = true. Right means close to PyTorch in float64 for inputs of many kinds (normal, large, tiny, constant rows and \
others), at every workload that `when` accepts, including workloads that are not shown: 1, odd sizes, primes, tile \
sizes plus or minus one. Either handle tails or narrow `when`.
- Inputs are read-only. Do not access memory outside the buffers, not even by reading: guards surround them, and a \
sanitizer looks for stray accesses, races and values read before they were written.
- Each call is independent: no __device__ or static variable that is written (constant tables are fine), no malloc or \
new, no clock. A result that is remembered, guessed or computed from part of the inputs counts as cheating, as does a \
time shorter than that of reading the inputs.
- Prefer deterministic results: floating-point atomics make results differ from call to call, which is recorded.
- Then it is timed at the listed workloads with a cold L2 cache: all launches of a call, the gaps between them, and \
the zeroing of workspace with zero = true. A kernel that is faster at any workload survives.
"""


def rules() -> str:
    """Return the rules of the kernel format, with an example."""
    return RULES.format(example=EXAMPLE)
