"""Kinds of devices: their policies, and their lookup by name. Each folder beside this module is one kind of device.

The folder's `__init__.py` defines the members of `DeviceFolder`. It must not import PyTorch or a compiler at module
level, because commands that only read the archive need policies too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from threading import Thread
from typing import TYPE_CHECKING, Protocol, cast

import evolve.devices
from archive.records import Outcome
from evolve.errors import UserError

if TYPE_CHECKING:
    from archive.kernel import Bound, Kernel
    from archive.records import DeviceInfo
    from evolve.devices.device import CompileResult, Device

FALLBACK = "emulated"  # used if no GPU is found
EAGER, COMPILE, AUTOTUNE = EVERY_BASELINE = "eager", "compile", "autotune"

# "compile" applies to each workload, "run" to the candidate only; torch.compile makes "prepare" and "baseline" slow.
# The processes of "sanitize" have limits of their own, three minutes in all; the rest is for waits for other workers.
PHASE_SECONDS: Mapping[str, float] = {
    "compile": 20.0,
    "run": 5.0,
    "check": 60.0,
    "prepare": 300.0,
    "baseline": 300.0,
    "time": 60.0,
    "sanitize": 1800.0,
    "profile": 120.0,
}


@dataclass(frozen=True)
class Policy:
    """Facts about one kind of device. The defaults are cautious, and are used for kinds that are not installed."""

    needs: tuple[str, ...] = ()  # findings of `evolve doctor` that the device requires
    torch_device: str = "cpu"  # PyTorch's name of the device that holds the kernels' tensors

    # Only GPU times are compared with the speed of light and exported.
    times_are_gpu_times: bool = False
    times: str = "non-GPU times"  # name of the times in reports
    baselines: tuple[str, ...] = (EAGER,)  # PyTorch's modes, in the order in which they are tried

    phase_seconds: Mapping[str, float] = field(default_factory=lambda: PHASE_SECONDS)  # deadlines of phases
    held_out_bytes: int = 2**18  # size of the largest shape that is drawn to check a kernel
    stretched_bytes: int = 2**21  # size of the largest "stretched" shape: one dim exceeds those that the op lists
    stretched_flops: int = 2**21  # largest number of operations of a stretched shape
    stretched_steps: int | None = None  # limit on a stretched shape's rows times threads of a block, if any
    # largest number of threads of a held-out shape, unless a declared workload has more; None: no limit
    held_out_threads: int | None = None
    # number of shapes with small or equal dims that need a separate compilation, in an evaluation without a
    # confirmation; None: all, as in a confirmation
    edge_compilations: int | None = None
    beyond_elements: int | None = None  # a champion is also checked on a tensor of more elements, unless this is None

    most_workers: int = 1  # number of processes that hold the device, or one of its cards
    cores_per_worker: int = 1  # number of cores for each of these processes beyond the second
    card_variable: str = ""  # environment variable that limits a process to one card; empty if there is only one
    most_compilers: int = 0  # number of processes that compile ahead and do not hold the device
    # number of processes that compile baselines ahead; they hold the device, but run nothing on it
    most_preparers: int = 0
    # Limit on a worker's memory. None for CUDA, which reserves too much address space for a limit.
    worker_bytes: int | None = None
    # such kernels can overwrite their worker's memory, so workers are confined more strictly
    kernels_are_native_code: bool = False
    # outcomes after which the worker is replaced
    replaced_after: tuple[Outcome, ...] = (Outcome.CRASHED, Outcome.LAUNCH_ERROR)

    no_profiler: str = "this device has no profiler"  # reason why there are no counters
    no_sanitizer: str = "this device has no sanitizer"


UNKNOWN = Policy()


class DeviceFolder(Protocol):
    """Members that the module of a device folder must define."""

    POLICY: Policy

    def missing(self) -> str:
        """Return the reason why the device cannot run on this machine, or an empty string."""

    def cards(self) -> tuple[str, ...]:
        """Return the names of the device's cards on this machine, such as several GPUs; one empty name if it has none.

        A process that finds a name in the policy's `card_variable` uses only that card.
        """

    def make(self, known: "DeviceInfo | None", cubins: Path | None) -> "Device":
        """Return the device.

        `known` holds the rates that an earlier worker measured; compilers write their results to `cubins`.
        """

    def compiler_for(self, info: "DeviceInfo", cubins: Path) -> "Callable[[Bound], CompileResult]":
        """Return a function that compiles without the device; called only if the policy allows compilers."""

    def supports(self, kernel: "Kernel") -> bool:
        """Return False if it is clear before compiling that the source needs a feature that the device lacks."""

    def preload(self) -> None:
        """Import modules for workers without using the device: workers are forked from this process."""


def kinds() -> tuple[str, ...]:
    """Return the names of all kinds of devices."""
    return tuple(_folders(tuple(evolve.devices.__path__)))


def policy_of(kind: str) -> Policy:
    """Return the policy of a kind of device. Archives may name kinds without a folder: these get a cautious default."""
    folder = _folders(tuple(evolve.devices.__path__)).get(kind)
    return folder.POLICY if folder else UNKNOWN


def device_kind(requested: str = "") -> str:
    """Return the requested kind of device; by default a GPU if one is usable, otherwise the emulated device."""
    if requested:
        check_kind(requested)
        if lacking := _folder(requested).missing():
            raise UserError(lacking, "run `evolve doctor` to see what is missing")
        return requested
    gpus = (kind for kind in kinds() if policy_of(kind).times_are_gpu_times)
    return next((kind for kind in gpus if not _folder(kind).missing()), FALLBACK)


def look_ahead() -> None:
    """Begin to look for a GPU in a thread. A driver takes some tenths of a second to start, and starts only once."""
    Thread(target=device_kind).start()


def check_kind(requested: str) -> None:
    """Raise a UserError unless there is a device of this kind."""
    if requested not in kinds():
        raise UserError(f"there is no device `{requested}`", f"choose one of: {', '.join(kinds())}")


def missing(kind: str) -> str:
    return _folder(kind).missing()


def cards(kind: str, requested: str = "") -> tuple[str, ...]:
    """Return the requested cards of a device, given as numbers like `0,2` or as `all`; by default its first card."""
    if not requested:
        return ("",)
    found = _folder(kind).cards()
    if not policy_of(kind).card_variable:
        raise UserError(f"--gpus {requested}: the {kind} device has no GPUs", "leave out --gpus, or name --device cuda")
    if requested == "all":
        return found
    numbers = [text.strip() for text in requested.split(",")]
    known = [str(number) for number in range(len(found))]
    if wrong := [text for text in numbers if text not in known]:
        raise UserError(
            f"--gpus {requested}: there is no GPU `{wrong[0]}`", f"choose from {', '.join(known)}, or give all"
        )
    if len(set(numbers)) < len(numbers):
        raise UserError(f"--gpus {requested} names a GPU twice", "name each GPU once")
    return tuple(found[int(text)] for text in numbers)


def make(kind: str, known: "DeviceInfo | None" = None, cubins: Path | None = None) -> "Device":
    """Return the device itself; only worker processes need it."""
    return _folder(kind).make(known, cubins)


def compiler_for(info: "DeviceInfo", cubins: Path) -> "Callable[[Bound], CompileResult]":
    """Return a function that compiles for a device of this kind and writes the result to `cubins` for a worker."""
    return _folder(info.kind).compiler_for(info, cubins)


def supports(kind: str, kernel: "Kernel") -> bool:
    return _folder(kind).supports(kernel)


def preload(kind: str) -> None:
    _folder(kind).preload()


def _folder(kind: str) -> DeviceFolder:
    check_kind(kind)
    return _folders(tuple(evolve.devices.__path__))[kind]


@cache
def _folders(path: tuple[str, ...]) -> Mapping[str, DeviceFolder]:
    names = sorted(module.name for module in iter_modules(path) if module.ispkg)
    return {name: cast("DeviceFolder", import_module(f"evolve.devices.{name}")) for name in names}
