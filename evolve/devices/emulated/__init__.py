"""The emulated device: kernels compiled by the host's C++ compiler and run on the CPU, with fibres for threads."""

import contextlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from archive.records import Outcome
from evolve.devices.policy import PHASE_SECONDS, Policy
from evolve.errors import UserError

if TYPE_CHECKING:
    from archive.binding import Bound
    from archive.kernel import Kernel
    from archive.records import DeviceInfo
    from evolve.devices.device import CompileResult, Device

ARCH = "sm_90a"  # of the GPU that kernels are also compiled for, where NVRTC is installed

POLICY = Policy(
    needs=("PyTorch", "CUDA headers", "C++ compiler"),
    times="CPU times",
    # All workloads are one compilation, and the first one builds the emulator's runtime too. The host's compiler has
    # a deadline of its own besides.
    phase_seconds={**PHASE_SECONDS, "compile": 240.0, "run": 30.0},
    held_out_bytes=2**18,
    # Threads run one after the other: many short rows with a block each would take minutes.
    held_out_threads=2**19,
    most_workers=4,
    worker_bytes=16 * 2**30,
    kernels_are_native_code=True,
    replaced_after=(Outcome.CRASHED, Outcome.LAUNCH_ERROR, Outcome.OUT_OF_BOUNDS),
    no_profiler="the emulated device has no profiler: it counts nothing that a GPU would",
    no_sanitizer="compute-sanitizer runs on GPUs only",
)


def missing() -> str:
    return ""  # a missing compiler shows when the first worker starts


def make(_known: "DeviceInfo | None", _cubins: Path | None) -> "Device":
    from evolve.devices.emulated.device import EmulatedDevice

    if find_spec("cupy") is None:
        return EmulatedDevice()
    from evolve.devices.cuda.compiler import compile_cubin

    return EmulatedDevice(also_compile=partial(compile_cubin, arch=ARCH))


def compiler_for(info: "DeviceInfo", cubins: Path) -> "Callable[[Bound], CompileResult]":
    """Compile for the GPU alone. The policy asks for no compilers, but an engine may be given some."""
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

    with contextlib.suppress(UserError):  # the worker that needs it reports it
        prepare()
    if find_spec("cupy"):
        from evolve.devices.cuda import preload_nvrtc

        preload_nvrtc()
