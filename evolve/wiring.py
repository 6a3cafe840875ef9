"""The one place where concrete classes are chosen: device, engine, proposer, archive file.

Their modules are imported where they are needed: most of them take seconds, for torch, and looking something up
in the archive needs none of them.
"""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from archive.store import ArchiveError, SqliteStore, Store, open_archive
from evolve.errors import UserError

if TYPE_CHECKING:
    from archive.binding import Bound
    from archive.kernel import Kernel
    from archive.records import DeviceInfo
    from evolve.devices.device import Device, Machined
    from evolve.engines.local import LocalEngine
    from evolve.request import Proposer

DEFAULT_ARCHIVE = Path(".evolve/archive.db")
DEVICE_KINDS = ("cuda", "emulated")
EMULATED_ARCH = "sm_90a"
MOST_COMPILERS = 12
IMPORTED_LATE = ("sympy", "numpy.random", "numpy.ma")  # by PyTorch and NumPy, when they are first needed


def device_kind(requested: str = "") -> str:
    """The requested kind of device, or `cuda` where a GPU and CuPy are found, else `emulated`."""
    if requested and requested not in DEVICE_KINDS:
        raise UserError(f"there is no device `{requested}`", f"choose one of: {', '.join(DEVICE_KINDS)}")
    if requested == "cuda" and not gpu_found():
        raise UserError("no usable NVIDIA GPU was found", "`evolve doctor` says what is missing")
    return requested or ("cuda" if gpu_found() else "emulated")


def gpu_found() -> bool:
    """Whether the cuda device can run: a GPU that PyTorch sees, and CuPy beside it."""
    return find_spec("cupy") is not None and torch_sees_gpu()


def torch_sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def device(kind: str, known: "DeviceInfo | None" = None, cubins: Path | None = None) -> "Device":
    """The device itself; only a worker process needs one.

    `known` is what an earlier worker found the device to be, `cubins` where compilers leave what they compiled.
    """
    if kind == "cuda":
        from evolve.devices.cuda.device import CudaDevice

        return CudaDevice(known=known, cubins=cubins)
    from evolve.devices.emulated.device import EmulatedDevice

    if find_spec("cupy") is None:
        return EmulatedDevice()
    from evolve.devices.cuda.compiler import compile_cubin

    return EmulatedDevice(also_compile=partial(compile_cubin, arch=EMULATED_ARCH))


def runs(kind: str, kernel: "Kernel") -> bool:
    """Whether a device has what the source asks for; of a GPU only its compiler knows."""
    if kind == "cuda":
        return True
    from archive.records import Outcome
    from evolve.devices.device import RejectedError
    from evolve.devices.emulated.source import translate

    try:
        translate(kernel.source, 1)
    except RejectedError as error:
        return error.outcome is not Outcome.UNSUPPORTED
    return True


def compiler(info: "DeviceInfo", cubins: Path) -> "Callable[[Bound], Machined]":
    """Compiles for a GPU without one, and leaves the result for the worker that has it."""
    from evolve.devices.cuda.compiler import compile_ahead

    return partial(compile_ahead, arch=info.arch, cubins=cubins)


def preload(kind: str) -> None:
    """Have ready everything that the workers of an engine will need, without touching a GPU."""
    for module in ("evolve.engines.worker", f"evolve.devices.{kind}.device", *IMPORTED_LATE):
        import_module(module)
    if kind == "emulated":
        from evolve.devices.emulated.compiler import prepare

        with contextlib.suppress(UserError):  # the worker that needs it will say so
            prepare()
    if find_spec("cupy"):
        from evolve.devices.cuda.compiler import nvrtc_version

        with contextlib.suppress(ImportError, RuntimeError):  # what needs it will say so
            nvrtc_version()


def engine(kind: str, watch: Callable[[str, str], None] | None = None) -> "LocalEngine":
    """Worker processes: per GPU one, and others that compile; on the emulated device one per core, up to four."""
    from evolve.engines.local import LocalEngine

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if kind == "cuda":
        return LocalEngine(kind, 1, watch, compilers=max(1, min(MOST_COMPILERS, cores - 2)))
    return LocalEngine(kind, max(1, min(4, cores)), watch)


def proposer(requested: str = "", models: tuple[str, ...] = (), *, tune: bool = True) -> "Proposer":
    """`offline` or `llm`; by default models where some are named, or a key or a base URL is set.

    Without `tune` nobody finishes what the models write by setting its knobs.
    """
    if requested not in ("", "offline", "llm"):
        raise UserError(f"there is no proposer `{requested}`", "choose offline or llm")
    reachable = bool(os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"))
    if requested == "offline" or not (reachable or requested or models):
        from evolve.proposers.tuner.proposer import OfflineProposer

        return OfflineProposer()
    from evolve.proposers.llm.proposer import from_environment

    return _finished(from_environment(models), tune=tune)


def replaying(store: Store, run: str, *, tune: bool = True) -> "Proposer":
    """The models of a recorded run, answering from the archive as they did then: no key, no network."""
    from evolve.proposers.llm import replay
    from evolve.proposers.llm.proposer import LlmProposer

    exchanges = replay.recorded(store, run)
    answering = replay.Recorded(run, exchanges)
    return _finished(LlmProposer(replay.models(exchanges), answering, answering.in_order), tune=tune)


def _finished(models: "Proposer", *, tune: bool) -> "Proposer":
    from evolve.proposers.tuner.proposer import FinishingProposer, OfflineProposer

    return FinishingProposer(models, OfflineProposer()) if tune else models


def archive_path(requested: Path | None) -> Path:
    return requested or Path(os.environ.get("EVOLVE_ARCHIVE") or DEFAULT_ARCHIVE)


def archive(requested: Path | None, *, read_only: bool = False) -> SqliteStore:
    try:
        return open_archive(archive_path(requested), read_only=read_only)
    except ArchiveError as error:
        hint = "`evolve run softmax` makes one; --archive or EVOLVE_ARCHIVE names another" if read_only else ""
        raise UserError(str(error), hint) from error
