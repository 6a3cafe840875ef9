"""The CUDA device: compiles with NVRTC, and launches and times kernels on NVIDIA GPUs through CuPy."""

import contextlib
import ctypes
import os
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from evolve.devices.choose import EVERY_BASELINE, Policy
from evolve.errors import UserError

if TYPE_CHECKING:
    from archive.kernel import Bound, Kernel
    from archive.records import DeviceInfo
    from evolve.devices.device import CompileResult, Device

POLICY = Policy(
    needs=("PyTorch", "GPU", "NVRTC", "CUDA headers"),
    torch_device="cuda",
    times_are_gpu_times=True,
    times="GPU times",
    baselines=EVERY_BASELINE,
    held_out_bytes=2**25,
    stretched_bytes=2**21,
    stretched_flops=2**34,
    edge_compilations=3,
    beyond_elements=2**31,
    most_workers=4,
    cores_per_worker=4,
    card_variable="CUDA_VISIBLE_DEVICES",
    most_compilers=28,
    most_preparers=8,
    no_profiler="NVIDIA's profiler ncu was not found; run `evolve doctor` to see how to install it",
    no_sanitizer="compute-sanitizer was not found, so races and stray accesses were not checked",
)


def missing() -> str:
    return "" if find_spec("cupy") and gpu_found() else "no usable NVIDIA GPU was found"


def cards() -> tuple[str, ...]:
    """Return the GPUs that this process may use, named as CUDA_VISIBLE_DEVICES names them."""
    count, _ = _found()
    named = [name.strip() for name in os.environ.get(POLICY.card_variable, "").split(",") if name.strip()]
    return tuple(named[:count] or map(str, range(count)))


def gpu_found() -> bool:
    """Return whether there is a GPU and a driver new enough for PyTorch's CUDA, without importing PyTorch."""
    built_for = _cuda_of_torch()
    count, version = _found()
    # A driver supports its own major version of CUDA and all older ones.
    return count > 0 and 0 < built_for <= version // 1000


def _found() -> tuple[int, int]:
    """Return the number of usable GPUs and the newest version of CUDA that the driver supports; zeros without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, 0
    count, version = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0, 0
    driver.cuDriverGetVersion(ctypes.byref(version))
    return count.value, version.value


def _cuda_of_torch() -> int:
    """Return the major version of CUDA that PyTorch is built for; 0 for a build without CUDA."""
    spec = find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    text = version.read_text(encoding="utf-8") if version and version.is_file() else ""
    built = re.search(r"^cuda\b[^=\n]*= *'(\d+)", text, re.MULTILINE)
    return int(built.group(1)) if built else 0


def torch_sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def make(known: "DeviceInfo | None", cubins: Path | None) -> "Device":
    from evolve.devices.cuda.compiler import nvrtc_version
    from evolve.devices.cuda.device import CudaDevice

    try:
        nvrtc_version()
    except (ImportError, RuntimeError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        message = f"NVRTC, which compiles kernels, cannot be loaded: {first[:120]}"
        raise UserError(message, "run `evolve doctor` on that machine to see how to install it") from error
    return CudaDevice(known=known, cubins=cubins)


def compiler_for(info: "DeviceInfo", cubins: Path) -> "Callable[[Bound], CompileResult]":
    from evolve.devices.cuda.compiler import compile_ahead

    return partial(compile_ahead, arch=info.arch, cubins=cubins)


def supports(_kernel: "Kernel") -> bool:
    return True  # only a compilation shows which features the kernel needs


def preload() -> None:
    import_module("evolve.devices.cuda.device")
    preload_nvrtc()


def preload_nvrtc() -> None:
    """Load NVRTC. If this fails, the first compilation will report the error."""
    from evolve.devices.cuda.compiler import nvrtc_version

    with contextlib.suppress(ImportError, RuntimeError):
        nvrtc_version()
