"""Kernels for the op in `samples/twice.py`: correct, wrong, crashing and hanging ones."""

from pathlib import Path

from archive.kernel import Kernel, parse

HEADER = """/*---
op = "twice"
note = "{note}"

[knobs]
THREADS = [128, 64, 256]

[[launch]]
entry = "twice"
grid = ["ceil_div(n, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "n"]
---*/
extern "C" __global__ void twice(const x_t* x, out_t* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    {body}
}}
"""
RIGHT = "if (i < n) out[i] = x_t(2.0f * float(x[i]));"


def twice_kernel(body: str = RIGHT, note: str = "one element a thread") -> Kernel:
    return parse(HEADER.format(body=body, note=note))


NO_OP = twice_kernel("", "does nothing")
ZEROS = twice_kernel("if (i < n) out[i] = x_t(0.0f);", "writes zeros")
HALF_WRITTEN = twice_kernel("if (i < n / 2) out[i] = x_t(2.0f * float(x[i]));", "writes the first half")
WRONG = twice_kernel("if (i < n) out[i] = x_t(2.001f * float(x[i]) + 0.05f);", "not quite twice")
BEYOND = twice_kernel("if (i < n + 1) out[i] = x_t(2.0f * float(x[min(i, n - 1)]));", "one element too many")
BEFORE = twice_kernel(RIGHT + " if (i == 0) out[-1] = x_t(7.0f);", "writes before its output")
CHANGES_INPUT = twice_kernel(RIGHT + " if (i < n) const_cast<x_t*>(x)[i] = x_t(1.0f);", "overwrites its input")
CRASHING = twice_kernel("out[(1ll << 44) + i] = x_t(1.0f);", "a wild address")
# The condition is always false, but a compiler may not assume that a volatile byte does not change.
ENDLESS = "const volatile unsigned char* at = (const volatile unsigned char*)x; while (at[0] != at[0] + 1) {} "
HANGING = twice_kernel(ENDLESS + RIGHT, "an endless loop")
NO_CODE = twice_kernel("this is not C++;", "does not compile")
NOT_EXTERN = parse(twice_kernel().text.replace('extern "C" ', ""))
TOO_MANY_ARGUMENTS = parse(twice_kernel().text.replace('"out", "n"]', '"out", "n", 3]'))
UNKNOWN_TENSOR = parse(twice_kernel().text.replace('args = ["x"', 'args = ["y"'))


def small_twice(folder: Path) -> str:
    """Write the op with small GPU workloads, for devices that only stand in for a GPU, and return its path."""
    text = (Path(__file__).parents[1] / "samples" / "twice.py").read_text()
    assert "1 << 20" in text
    file = folder / "twice.py"
    file.write_text(text.replace("1 << 20", "1 << 12"))
    return str(file)
