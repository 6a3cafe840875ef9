"""The emulated device: the host's C++ compiler compiles kernels, and the CPU runs their threads as fibres."""

import contextlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from archive.records import Outcome
from evolve.devices.choose import PHASE_SECONDS, Policy
from evolve.errors import UserError

if TYPE_CHECKING:
    from archive.kernel import Bound, Kernel
    from archive.records import DeviceInfo
    from evolve.devices.device import CompileResult, Device

ARCH = "sm_90a"  # GPU for which kernels are also compiled if NVRTC is installed

POLICY = Policy(
    needs=("PyTorch", "CUDA headers", "C++ compiler"),
    times="CPU times",
    # The phase covers all workloads and may include building the emulator's runtime. Each run of the host's compiler
    # also has a deadline of its own.
    phase_seconds={**PHASE_SECONDS, "compile": 240.0, "run": 30.0},
    held_out_bytes=2**18,
    # Threads run one after the other: many short rows with one block each would take minutes.
    held_out_threads=2**20,
    # A single block may process all rows instead. A row with some barriers takes up to 0.4 us per thread.
    stretched_steps=2**23,
    most_workers=4,
    worker_bytes=16 * 2**30,
    kernels_are_native_code=True,
    replaced_after=(Outcome.CRASHED, Outcome.LAUNCH_ERROR, Outcome.OUT_OF_BOUNDS),
    no_profiler="the emulated device has no profiler: it has no hardware counters",
    no_sanitizer="compute-sanitizer runs on GPUs only",
)


def missing() -> str:
    return ""  # the first worker reports a missing compiler


def cards() -> tuple[str, ...]:
    return ("",)


def make(_known: "DeviceInfo | None", _cubins: Path | None) -> "Device":
    from evolve.devices.emulated.device import EmulatedDevice

    if find_spec("cupy") is None:
        return EmulatedDevice()
    from evolve.devices.cuda.compiler import check_compiles, compile_cubin

    return EmulatedDevice(partial(compile_cubin, arch=ARCH), partial(check_compiles, arch=ARCH))


def compiler_for(info: "DeviceInfo", cubins: Path) -> "Callable[[Bound], CompileResult]":
    """Return a function that compiles only for the GPU. The policy allows no compilers, but an engine may have some."""
    from evolve.devices.cuda.compiler import compile_ahead

    return partial(compile_ahead, arch=info.arch, cubins=cubins)


def supports(kernel: "Kernel") -> bool:
    from evolve.devices.device import RejectedError
    from evolve.devices.emulated.source import translate

    try:
        translate(kernel.source, 1)
    except RejectedError as error:
        return error.outcome is not Outcome.UNSUPPORTED
    return True


def preload() -> None:
    import_module("evolve.devices.emulated.device")
    from evolve.devices.emulated.compiler import prepare

    with contextlib.suppress(UserError):  # the first worker will report the error
        prepare()
    if find_spec("cupy"):
        from evolve.devices.cuda import preload_nvrtc

        preload_nvrtc()
