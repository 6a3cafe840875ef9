"""Prelude of a kernel's source on all devices: types, specialised values and knobs. Also finds CUDA's headers."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from archive.kernel import Bound, print_plan

C_TYPES = {
    "float64": "double", "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16",
    "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char", "uint8": "unsigned char",
    "bool": "bool", "float8_e4m3fn": "__nv_fp8_e4m3", "float8_e5m2": "__nv_fp8_e5m2",
}  # fmt: skip
RUNTIME, LIBRARY = "cuda_fp16.h", "cuda/std/type_traits"


def specialisation(bound: Bound) -> str:
    """Return C++ declarations of types and specialised values. Only knobs are macros, which could break headers."""
    lines = ["#include <cuda_fp8.h>"] if any(dtype.startswith("float8") for _, dtype in bound.types) else []
    lines += [f"using {name}_t = {C_TYPES[dtype]};" for name, dtype in bound.types]
    lines += [f"constexpr {_integer_type(value)} {name} = {value};" for name, value in bound.constants]
    lines += [f"#define {name} ({value})" for name, value in bound.kernel.plan.settings.items()]
    return "\n".join(lines) + "\n"


def numbered_source(bound: Bound) -> str:
    """Return the kernel's source, with line numbers that match the kernel's canonical text."""
    first_line = print_plan(bound.kernel.plan).count("\n") + 3
    return f'#line {first_line} "kernel.cu"\n{bound.kernel.source}'


def _integer_type(value: int) -> str:
    return "int" if -(2**31) < value < 2**31 else "long long"


def cuda_include_dirs() -> tuple[Path, ...]:
    """Return the folders with CUDA's headers; empty if there are none. Wheels are searched first.

    An installation may consist of several folders, as CUDA 12's wheels do; PyTorch's wheels lack CCCL.
    """
    runtime = next((folder for folder in _candidates() if (folder / RUNTIME).is_file()), None)
    if runtime is None:
        return ()
    compiler = runtime.parents[1] / "cuda_nvcc" / "include"
    parts = (path for folder in _candidates() for path in (folder, folder / "cccl"))
    library = next((path for path in parts if (path / LIBRARY).is_file()), None)
    return tuple(dict.fromkeys(path for path in (runtime, compiler, library) if path and path.is_dir()))


def _candidates() -> Iterator[Path]:
    for key in ("purelib", "platlib"):
        packages = Path(sysconfig.get_path(key)) / "nvidia"
        yield from (packages / "cu13" / "include", packages / "cu12" / "include")
        yield from (packages / "cuda_runtime" / "include", packages / "cuda_cccl" / "include")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "include"
    yield Path("/usr/local/cuda/include")
