"""Contract of an engine, which evaluates jobs on one device and yields evaluations as they finish."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve.evaluation.requests import TimingRequest, TimingResult


@dataclass(frozen=True)
class Job:
    """A kernel to evaluate. `op` is given as the catalog loads it: by name, or by the absolute path of a file."""

    kernel: Kernel
    op: str
    bars: tuple[tuple[str, float], ...] = ()  # time to beat on each workload, in us: timing stops early far above it
    # a setting of knobs of a kernel that has passed: a few calls are enough if it is clearly slower
    setting: bool = False
    confirm: bool = False  # also confirm it: in a fresh process, on more shapes, in duels, under the sanitizer
    # None to accept duplicates. Where kernels are compiled ahead, a kernel with the same machine code as another kernel
    # is not run. The emulated device runs it in any case, because compiling ahead would cost as much.
    duplicates: "FindsDuplicates | None" = field(default=None, compare=False, repr=False)
    device: str = ""  # key of the device that evaluates it, for an engine with several devices


class FindsDuplicates(Protocol):
    """Finds a known kernel that a compiled kernel duplicates."""

    def by_code(self, kernel_id: str, code: str) -> str:
        """Return a log that names another kernel with this machine code, or an empty string."""


class Engine(Protocol):
    @property
    def info(self) -> DeviceInfo:
        """The device on which kernels are evaluated."""

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        """Yield one evaluation per job, even if a job kills or hangs its worker."""

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        """Return the counters of the device's profiler, or None without counters. Not called during evaluations."""

    @property
    def unprofiled(self) -> str:
        """Reason why the last `profile` returned None; empty if it returned counters."""

    def close(self) -> None:
        """Stop everything that runs. A caller may call this at any time and more than once."""


@runtime_checkable
class TimesPyTorch(Protocol):
    """An engine that can also time PyTorch itself, without a kernel."""

    def time_pytorch(self, request: TimingRequest) -> TimingResult:
        """Return PyTorch's times at one workload, or the reason why there are none. Not called during evaluations."""


@runtime_checkable
class LoadsOps(Protocol):
    """An engine whose workers can load an op before their first job, so that the first verdict arrives sooner."""

    def load(self, op: str) -> None:
        """Let workers that wait for their first job load an op that this process has loaded. Returns at once."""


@runtime_checkable
class PreparesBaselines(Protocol):
    """An engine that can compile PyTorch's baselines ahead, so that verdicts arrive sooner."""

    def prepare(self, op: str, workloads: Collection[str], *, at_once: bool = True) -> None:
        """Begin to compile the baselines at these workloads, if there are processes for that. Returns at once.

        Unless `at_once`, compilation begins after the first verdict, because kernels are waiting to be judged.
        """


class TakesPauses(Engine, Protocol):
    """An engine whose jobs may pause: the item None means that there is no job now, but that more may follow."""

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        """Yield one evaluation per job. The generator ends only after the last job, not at a pause."""


@runtime_checkable
class HasCards(TakesPauses, Protocol):
    """An engine that may use several cards of its device, such as GPUs, at the same time."""

    @property
    def cards(self) -> int:
        """The number of its cards."""


@runtime_checkable
class HasDevices(HasCards, Protocol):
    """An engine with one or several devices, such as two types of GPUs. With several, each job names its device."""

    @property
    def devices(self) -> Sequence[DeviceInfo]:
        """The devices, once all are ready."""

    @property
    def idle(self) -> Collection[str]:
        """The keys of the devices that would be idle without another job."""

    def on(self, device: str) -> Engine:
        """Return the part of this engine that has the device with this key."""


def devices_of(engine: Engine) -> Sequence[DeviceInfo]:
    """Return the devices of an engine, once all are ready."""
    return engine.devices if isinstance(engine, HasDevices) else (engine.info,)


def on_device(engine: Engine, device: str) -> Engine:
    """Return the part of an engine that has the device with this key. An empty key means the only device."""
    return engine.on(device) if device and isinstance(engine, HasDevices) else engine
